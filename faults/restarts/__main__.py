"""Makes ``python -m faults.restarts`` run."""

import sys

from faults.restarts.cli import main

sys.exit(main())
