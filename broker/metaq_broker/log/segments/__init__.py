"""Segment files of a partition and the sparse index beside them."""
