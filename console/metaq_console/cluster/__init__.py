"""Questions to a cluster, with deadlines: what the API and the pages are made from."""
