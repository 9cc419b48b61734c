"""The source: what a read is about, where its batches begin and end, its tasks and what their rows are made of."""
