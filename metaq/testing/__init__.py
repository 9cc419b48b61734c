"""Fakes that ship: a manual clock, a scripted peer, a broker in memory. The tests of the real things verify them."""
