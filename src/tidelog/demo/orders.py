"""The orders, read from invoice lines, and the names that all parts of the demonstration share."""

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from confluent_kafka import Message

ORDERS = "orders"
EVENTS = "order-events"
REORDERS = "reorders"
PARTITIONS = 12
DATA = "online_retail_2010_12.csv.gz"
STOCK_PERCENT = 70
"""Opening stock of a product, in percent of the ordered units. The remaining orders find the product sold out."""


class Order(NamedTuple):
    """One invoice line. `order_id` is unique; money is in pence."""

    order_id: str
    product: str
    description: str
    quantity: int
    price_pence: int
    customer: str
    country: str
    sent_ms: int = 0
    expires_ms: int = 0

    def to_json(self) -> bytes:
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        return cls(**json.loads(data))


class SkippedLines(NamedTuple):
    """How many lines are not sales, by reason."""

    cancellations: int
    not_positive: int


def read_orders() -> tuple[list[Order], SkippedLines]:
    """Return every sale of the data set, in the sequence of the file, and how many lines were skipped."""
    orders: list[Order] = []
    cancellations = not_positive = 0
    for number, row in enumerate(_rows()):
        invoice, quantity, price_pence = row["InvoiceNo"], int(row["Quantity"]), round(100 * float(row["UnitPrice"]))
        if invoice.startswith("C"):
            cancellations += 1
        elif quantity <= 0 or price_pence <= 0:
            not_positive += 1
        else:
            orders.append(
                Order(
                    order_id=f"{invoice}-{number}",
                    product=row["StockCode"],
                    description=row["Description"].strip(),
                    quantity=quantity,
                    price_pence=price_pence,
                    customer=row["CustomerID"].partition(".")[0] or "guest",
                    country=row["Country"],
                )
            )
    return orders, SkippedLines(cancellations, not_positive)


def opening_stock(orders: list[Order]) -> dict[str, int]:
    """Return the units of each product at the start: STOCK_PERCENT of the units ordered, but at least one."""
    ordered: Counter[str] = Counter()
    for order in orders:
        ordered[order.product] += order.quantity
    return {product: max(1, units * STOCK_PERCENT // 100) for product, units in ordered.items()}


def _rows() -> Iterator[dict[str, str]]:
    data = gzip.decompress(files(__package__).joinpath(DATA).read_bytes())
    return csv.DictReader(io.StringIO(data.decode(), newline=""))


def place_of(message: "Message") -> str:
    """Return the place of a record in the log, for an error."""
    return f"{message.topic()}-{message.partition()}, offset {message.offset()}"
