"""``python -m faults.restarts``: a broker that restarts during a micro-batch must not end a query.

A query copies one topic to another of the same broker, in micro-batches of a second or two. Meanwhile the broker is
stopped or killed, and started again some seconds later. The query must not end, and the copies must be complete.
"""
