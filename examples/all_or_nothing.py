"""An order and its invoice become readable together, or not at all: a transaction over two topics of one broker.

    python examples/all_or_nothing.py 127.0.0.1:8123
"""

from __future__ import annotations

import sys

from metaq import MetaQ


class OutOfStock(Exception):
    """There is nothing left of what was ordered."""


def place_order(cluster: str, item: str, stock: dict[str, int]) -> None:
    """Send an order and its invoice. An exception inside of the block rolls both back."""
    with MetaQ(cluster) as mq, mq.producer().transaction(timeout=30) as transaction:
        transaction.send("orders", item)
        transaction.send("invoices", f"for {item}")
        if not stock.get(item):
            raise OutOfStock(item)
        stock[item] -= 1


if __name__ == "__main__":
    place_order(sys.argv[1], "tea", {"tea": 1})
    try:
        place_order(sys.argv[1], "cake", {"tea": 1})
    except OutOfStock as error:
        print("rolled back:", error)
