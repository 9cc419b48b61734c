"""Reading RocketMQ queues: pulls, frames of the bundled broker, times."""
