"""Load: workers that each use the broker in one way and record requests and answers."""
