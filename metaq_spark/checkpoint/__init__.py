"""Inspecting and moving a stopped query through its checkpoint. Import from the modules."""
