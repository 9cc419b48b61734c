"""Makes ``python -m faults.exactly_once`` run."""

import sys

from faults.exactly_once.cli import main

sys.exit(main())
