"""What clients talk to: connections (``net``) and protocols (``text``)."""
