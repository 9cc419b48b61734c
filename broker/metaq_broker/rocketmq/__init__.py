"""The front end for RocketMQ's clients as a whole: broker and name server in one port, and its registration."""
