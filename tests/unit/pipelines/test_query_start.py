"""A query that has started its sources lets the next one start."""

import threading
from typing import Any, cast

import pytest

from tidelog.pipelines import queries
from tidelog.pipelines.queries import RunningQuery


class StartingQuery:
    """In place of Spark's query: each read of its status returns the next message."""

    def __init__(self, messages: list[str], active: list[bool]) -> None:
        self.messages = messages
        self.active = active

    @property
    def status(self) -> dict[str, Any]:
        return {"message": self.messages.pop(0)}

    @property
    def isActive(self) -> bool:
        return self.active.pop(0) if self.active else True


def waited(monkeypatch: pytest.MonkeyPatch, messages: list[str], active: list[bool]) -> int:
    """Wait for the sources of a query, and return the number of pauses."""
    pauses: list[float] = []
    monkeypatch.setattr(queries.time, "sleep", pauses.append)
    query = RunningQuery("sink", cast(Any, None), lambda: None)
    query._query = cast(Any, StartingQuery(messages, active))
    waiter = threading.Thread(target=query.wait_for_sources, daemon=True)
    waiter.start()
    waiter.join(20)
    assert not waiter.is_alive()
    return len(pauses)


def test_the_next_query_waits_until_the_sources_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = ["Initializing StreamExecution", "Initializing sources", "Getting offsets from ...", "unread"]
    assert waited(monkeypatch, messages, []) == 2
    assert messages == ["unread"]


def test_a_query_that_has_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(monkeypatch, ["Initializing sources"], [True, False]) == 1


def test_the_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "SOURCES_START_MAX_S", 0.0)
    assert waited(monkeypatch, [], []) == 0
