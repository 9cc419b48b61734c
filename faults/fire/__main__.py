"""Makes ``python -m faults.fire`` run."""

import sys

from faults.fire.cli import main

sys.exit(main())
