"""What compiled loops are made of, and how a process loads them. numba is imported by ``addresses`` alone."""
