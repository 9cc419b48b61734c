"""An index of message keys beside the log, which can be rebuilt from it."""
