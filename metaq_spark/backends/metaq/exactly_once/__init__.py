"""Exactly-once delivery: a batch is one transaction over all its tasks and brokers.

::

    driver, before the tasks   plan          the brokers that take part, and the name of the batch
                               participants  ... which are found once
    a task attempt             task          puts its blocks into branches
                               branches      the branches on one broker: begun, prepared, put again
    driver, after the tasks    commit        the tasks' branches become the batch, or are rolled back
                               coordinator   ... with the brokers: decide, share, commit, clean up
                               history       ... unless these have lost earlier batches
    all of them                identity      names of branches and batches
                               contents      what a batch contains, which is recorded with its decision

Source: docs/transactions.md, docs/adr/0007.
"""
