"""``python -m metaq_broker.nameserver``: the same as ``metaq-namesrv``."""

import sys

from metaq_broker.nameserver.cli import main

sys.exit(main())
