"""The source: selection, planning of batches, tasks, and the creation of rows."""
