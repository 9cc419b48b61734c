"""RocketMQ's remoting protocol on the connections of ``frontends.net``: sessions, and handlers by request code."""
