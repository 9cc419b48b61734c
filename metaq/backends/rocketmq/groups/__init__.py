"""What RocketMQ brokers know about consumer groups: members, offsets."""
