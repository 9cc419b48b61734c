"""Wire protocols, sans-I/O: nothing below this package opens a socket, reads a clock or touches a file."""
