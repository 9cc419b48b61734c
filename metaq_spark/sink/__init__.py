"""The sink: routing of rows, writing in tasks, and committing in the driver."""
