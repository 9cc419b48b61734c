"""Other products, for tests and benchmarks: their servers and clients, fetched by package name."""
