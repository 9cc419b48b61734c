"""What compiled loops are made of, and how a process comes by them. numba is imported by ``addresses`` alone."""
