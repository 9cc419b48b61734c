"""Is a cluster all right? Each address, registration, clocks and disks, as findings that a person can read."""
