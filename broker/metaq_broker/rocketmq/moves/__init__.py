"""Moves waiting messages to their target topics, exactly once across crashes."""
