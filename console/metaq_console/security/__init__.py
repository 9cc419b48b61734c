"""What every request passes before a handler sees it: its host, its site of origin, its token, its size."""
