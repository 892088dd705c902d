"""The checker finds each planted error, and nothing else."""

from typing import Any

import pytest

from tidelog.demo.checker import Evidence, judge
from tidelog.demo.orders import Order


def order(order_id: str, product: str = "P", quantity: int = 2) -> Order:
    return Order(order_id, product, "a thing", quantity, 100, "c", "UK", 1, 2)


def event(order_id: str, outcome: str, product: str = "P", quantity: int = 2) -> dict[str, Any]:
    return {"order_id": order_id, "product": product, "quantity": quantity, "outcome": outcome}


def balanced() -> Evidence:
    """Three orders: accepted, sold out, expired. The accepted one's event was published twice."""
    return Evidence(
        orders=[order("a"), order("b"), order("c")],
        outcomes={"a": ("P", 2, "accepted"), "b": ("P", 2, "sold out"), "c": ("P", 2, "expired")},
        stock={"P": (3, 1)},
        events=[
            (1, event("a", "accepted")),
            (2, event("b", "sold out")),
            (1, event("a", "accepted")),
            (3, event("c", "expired")),
        ],
        sold={"P": 2},
        readers={"messages": 3, "risk": 3, "statistics": 3},
    )


def test_balanced_accounts_pass() -> None:
    verdict = judge(balanced())
    assert verdict.problems == []
    assert verdict.counts == {"accepted": 1, "sold out": 1, "expired": 1}
    assert (verdict.sent, verdict.events_published_again, verdict.oversold) == (3, 1, 0)


@pytest.mark.parametrize(
    ("planted", "problem"),
    [
        ({"orders": [order("a"), order("b"), order("c"), order("a")]}, "orders in the topic more than once"),
        ({"orders": [order("a"), order("b"), order("c"), order("d")]}, "orders without an outcome"),
        ({"orders": [order("a"), order("b")]}, "outcomes of orders that were not sent"),
        (
            {"events": [*balanced().events, (4, event("a", "accepted"))]},
            "orders with more than one event",
        ),
        ({"events": balanced().events[:3]}, "outcomes without an event"),
        (
            {"events": [*balanced().events[:3], (3, event("c", "sold out"))]},
            "events that contradict the ledger",
        ),
        ({"stock": {"P": (3, 3)}}, "the stock and the ledger have different sums"),
        ({"sold": {"P": 4}}, "Parquet and the ledger have different sums"),
        ({"sold": {}}, "Parquet and the ledger have different sums"),
        ({"stock": {"P": (1, -1)}}, "1 units were sold beyond the stock"),
        ({"readers": {"messages": 2}}, "group messages has seen 2 events of 3"),
    ],
)
def test_a_double_a_loss_and_a_lie_are_found(planted: dict[str, Any], problem: str) -> None:
    verdict = judge(balanced()._replace(**planted))
    assert any(problem in found for found in verdict.problems), verdict.problems
