"""``python3 -m calculator``."""

from calculator.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
