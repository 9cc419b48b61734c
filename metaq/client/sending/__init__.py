"""How submitted messages are gathered in batches, sent in the background, and settled."""
