"""Consumer groups: their settings, members, committed offsets and queue locks. No protocol is known here."""
