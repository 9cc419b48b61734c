"""``python -m metaq_console``."""

import sys

from metaq_console.cli import main

if __name__ == "__main__":
    sys.exit(main())
