"""``python -m forge_site``: how the launcher starts its parts with the very interpreter it runs under."""

from forge_site.console import main

main()
