"""Database servers of this machine, for tests: found where their packages install them, with data in a test's folder.
"""
