"""The rules, a row each, by block: evidence in, findings out. Pure. ``table`` has all of them."""
