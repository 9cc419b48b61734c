"""Tools for operators: a mirror of topics, a benchmark of a cluster."""
