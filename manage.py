#!/usr/bin/env python
"""The same commands as the installed ``forge`` script, for a checkout."""

from forge_site.console import main

if __name__ == "__main__":
    main()
