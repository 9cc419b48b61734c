"""Consumer groups: who reads which partition, how far, and what becomes of messages that a handler refuses."""
