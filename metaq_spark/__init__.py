"""The Spark connector: ``format("metaq")`` reads from and writes to MetaQ brokers.

Importing this package is free of numba, numpy and pyarrow: every Python process that Spark starts imports it again.
"""
