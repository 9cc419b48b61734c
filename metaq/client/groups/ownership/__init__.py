"""Which partitions a consumer owns, and from where it reads them."""
