"""When old segments are deleted or archived, and how."""
