"""Fakes for tests of programs: a manual clock, a scripted peer, a broker in memory. The tests of the real
implementations verify them.
"""
