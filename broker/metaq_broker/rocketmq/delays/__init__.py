"""Messages that wait for a time: delay levels, moments of their own, retries."""
