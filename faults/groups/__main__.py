"""Makes ``python -m faults.groups`` run."""

import sys

from faults.groups.cli import main

sys.exit(main())
