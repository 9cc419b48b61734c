"""Makes ``python -m faults.put_back`` run."""

import sys

from faults.put_back.cli import main

sys.exit(main())
