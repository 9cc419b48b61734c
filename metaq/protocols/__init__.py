"""Wire protocols, sans-I/O: nothing in this package opens a socket, reads a clock or touches a file."""
