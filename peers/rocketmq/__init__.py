"""Real RocketMQ servers and Java clients: ``jars`` fetches them, ``servers`` and ``programs`` run them."""
