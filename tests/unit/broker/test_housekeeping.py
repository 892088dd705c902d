"""The regular work of a broker on its partitions, and the report of a stop that did not wait for all requests."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.broker import BrokerServer
from tidelog.broker.listener import Listener


def test_a_stop_with_unfinished_requests_reports_both_waits(caplog: pytest.LogCaptureFixture) -> None:
    waits_s: list[float] = []

    async def wait_until_empty(timeout_s: float) -> None:
        waits_s.append(timeout_s)

    listener: Any = SimpleNamespace(
        _sweeper=None,
        _connections={},
        _ending={object(): None},
        stop_requests=lambda: None,
        _wait_until_empty=wait_until_empty,
    )
    asyncio.run(Listener.drain(listener, 5.0))
    assert waits_s == [5.0, 5.0]
    assert "requests were not completed connections=1 seconds=10" in caplog.text


def test_retention_runs_although_partitions_cannot_be_opened_again(caplog: pytest.LogCaptureFixture) -> None:
    rounds: list[str] = []

    async def open_again() -> None:
        rounds.append("open")
        raise RuntimeError("no")

    async def enforce_retention() -> None:
        rounds.append("retention")

    async def sleep(_delay_s: float) -> None:
        if len(rounds) == 4:
            raise asyncio.CancelledError

    broker: Any = SimpleNamespace(
        runtime=SimpleNamespace(tasks=SimpleNamespace(sleep=sleep)),
        config=SimpleNamespace(log_initial_task_delay_ms=0, log_retention_check_interval_ms=0),
        services=SimpleNamespace(
            partitions=SimpleNamespace(open_again=open_again, enforce_retention=enforce_retention)
        ),
    )
    with caplog.at_level(logging.ERROR), pytest.raises(asyncio.CancelledError):
        asyncio.run(BrokerServer._run_housekeeping(broker))
    assert rounds == ["open", "retention"] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "housekeeping failed task=opening of offline partitions"
    ] * 2
