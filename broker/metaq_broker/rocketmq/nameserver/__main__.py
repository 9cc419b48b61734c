"""``python -m metaq_broker.rocketmq.nameserver``: the same as ``metaq-namesrv``."""

import sys

from metaq_broker.rocketmq.nameserver.cli import main

sys.exit(main())
