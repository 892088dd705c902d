"""The lag of a streaming query, from the reports of its progress."""

import json
from typing import Any

import pytest

from pyspark_tidelog import progress as progress_module
from pyspark_tidelog.progress import Lag, LagTracker, report_of
from tidelog.model.ids import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def report(second: int, end: Any, latest: Any, *, as_text: bool = False) -> dict[str, Any]:
    def position(document: Any) -> Any:
        return json.dumps(document) if as_text else document

    return {
        "id": "q",
        "timestamp": f"2024-01-01T00:00:{second:02d}.000Z",
        "sources": [{"endOffset": position(end), "latestOffset": position(latest)}],
    }


def ends(first: int, second: int, **more: Any) -> dict[str, Any]:
    return {"t": {"0": first, "1": second}} | more


@pytest.mark.parametrize("as_text", [False, True])
def test_the_lag_is_what_is_in_the_topics_but_not_processed(as_text: bool) -> None:
    tracker = LagTracker()
    first = report(0, ends(5, 7) | {"@begun": {"t": {"0": 0}}}, ends(8, 7), as_text=as_text)
    assert tracker.add(first) == Lag(3, 0.0, {P0: 3, P1: 0})
    assert tracker.add(report(1, ends(8, 7), ends(8, 7), as_text=as_text)) == Lag(0, 0.0, {P0: 0, P1: 0})


def test_the_age_is_that_of_the_oldest_offset_which_is_not_processed() -> None:
    tracker = LagTracker()
    ages = []
    for second, processed, latest in [(0, 5, 5), (1, 5, 8), (2, 6, 9), (4, 7, 9), (5, 8, 9), (6, 9, 9), (7, 9, 12)]:
        lag = tracker.add(report(second, ends(processed, 0), ends(latest, 0)))
        assert lag is not None
        ages.append((lag.records, lag.seconds))
    assert ages == [(0, 0.0), (3, 0.0), (3, 1.0), (2, 3.0), (1, 3.0), (0, 0.0), (3, 0.0)]


def test_several_topics_are_added_and_other_sources_ignored() -> None:
    both = report(0, ends(1, 1), ends(2, 2))
    both["sources"] += [
        {"endOffset": {"u": {"0": 1}}, "latestOffset": {"u": {"0": 11}}},
        {"endOffset": 17, "latestOffset": 18},
        {"endOffset": {"logOffset": 3}, "latestOffset": None},
        {"endOffset": None, "latestOffset": None},
        {"endOffset": "not json", "latestOffset": "null"},
    ]
    lag = LagTracker().add(both)
    assert lag is not None
    assert lag.records == 12
    assert report_of(both | {"sources": both["sources"][2:]}) is None


def test_a_report_without_latest_ends_has_no_lag_and_one_without_topics_changes_nothing() -> None:
    tracker = LagTracker()
    assert tracker.add(report(0, 5, 6)) is None
    assert tracker.add(report(0, ends(5, 5), None)) == Lag(0, 0.0, {P0: 0, P1: 0})
    assert tracker.add(report(1, None, None)) == tracker.lag == Lag(0, 0.0, {P0: 0, P1: 0})


def test_the_number_of_remembered_reports_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "REPORTS_MAX", 8)
    tracker = LagTracker()
    for second in range(60):
        lag = tracker.add(report(second, ends(0, 0), ends(second + 1, 0)))
        assert len(tracker._reports) <= 8
        assert lag == Lag(second + 1, float(second), {P0: second + 1, P1: 0})
