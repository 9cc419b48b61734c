"""The core of a pair that elects its master: who leads, what is acknowledged, what a returning member has to cut.

It does no I/O and knows no clock: ``PairMember.handle`` takes one event and returns the actions that follow. The driver
of the broker executes them, in this order, and reports what happened as further events; ``faults/simulation`` does the
same in memory. ``events``, ``actions`` and ``messages`` are the whole interface; ``record`` is what ZooKeeper stores.

::

    learner ──▶ in sync ──▶ candidate ──▶ master ──▶ fenced
       ▲           │            │
       └───────────┴────────────┘         a fenced member is closed, opened again, and starts as a learner

Source: docs/replication.md.
"""
