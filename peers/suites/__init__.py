"""The peers' own suites of tests against the original and against this project's broker: ``make test-peer-suites``.

The suites are not part of this project: they are in a folder that ``SUITES`` names, compiled by their own builds.
docs/testing.md describes the folder. This package starts the servers, runs JUnit, and compares.
"""
