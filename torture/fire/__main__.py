"""Makes ``python -m torture.fire`` run."""

import sys

from torture.fire.cli import main

sys.exit(main())
