"""Other products beside this one, for tests and benchmarks: their servers and clients, fetched by package name."""
