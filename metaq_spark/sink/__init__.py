"""The sink: which rows go where, how a task writes them, what the driver does when all tasks are done."""
