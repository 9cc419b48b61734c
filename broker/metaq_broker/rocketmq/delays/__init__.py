"""Messages that wait for a time: delay levels, delivery times, retries."""
