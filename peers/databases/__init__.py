"""Database servers of this machine, for tests: found where their packages put them, started in a folder of the test."""
