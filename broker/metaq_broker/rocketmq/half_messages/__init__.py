"""Half messages: stored messages of undecided transactions, which are not visible."""
