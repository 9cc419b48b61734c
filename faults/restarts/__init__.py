"""``python -m faults.restarts``: a broker that restarts in the middle of a micro-batch must not end a query.

A query copies one topic to another of the same broker, in micro-batches that take a second or two, and the broker is
stopped or killed meanwhile and started again, some seconds later. Nothing may end the query, and the copies must be
complete.
"""
