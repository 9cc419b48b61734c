"""Messages of the log in RocketMQ's form: by queue offset, physical offset, id or key."""
