"""The errors of the flash sale's programs name the record or the number of orders."""

from pathlib import Path
from typing import Any, cast

import pytest

from tidelog.demo.gateway import not_acknowledged
from tidelog.demo.readers import Reader
from tidelog.demo.worker import _value


class Tombstone:
    """A record without a value."""

    def error(self) -> None:
        return None

    def value(self) -> None:
        return None

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 17


def test_a_record_without_a_value_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^an order has no value: orders-3, offset 17$"):
        _value(cast(Any, Tombstone()))
    reader = Reader("127.0.0.1:1", "risk", tmp_path / "risk.sqlite")
    try:
        with pytest.raises(RuntimeError, match=r"^an event has no value: orders-3, offset 17$"):
            reader._process([cast(Any, Tombstone())])
    finally:
        reader._consumer.close()
        reader._db.close()


def test_each_error_of_orders_is_named_with_its_number() -> None:
    assert not_acknowledged(["timed out"]) == "orders were not acknowledged: 1 order: timed out"
    assert not_acknowledged(["timed out", "too large", "timed out"]) == (
        "orders were not acknowledged: 2 orders: timed out; 1 order: too large"
    )
