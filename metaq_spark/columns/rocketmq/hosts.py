"""Hosts as records have them, an IP address of 4 or 16 bytes and a port as an int32, as text: ``10.1.2.3:54321``."""

from __future__ import annotations

import ipaddress

import pyarrow as pa


def host_text(raw: bytes) -> str:
    """``address:port``, an IPv6 address in brackets."""
    address, port = ipaddress.ip_address(raw[:-4]), int.from_bytes(raw[-4:], signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def host_texts(column: pa.Array) -> pa.Array:
    """A binary column of hosts as strings. There are few different ones, and each is written once."""
    encoded = column.dictionary_encode()
    texts = [host_text(raw) for raw in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)
