"""What operators run: a mirror of topics, a benchmark of a cluster."""
