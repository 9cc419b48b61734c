"""Makes ``python -m torture`` run."""

import sys

from torture.cli import main

sys.exit(main())
