"""A query's checkpoint, looked at and moved from outside while the query is stopped. Import from the modules."""
