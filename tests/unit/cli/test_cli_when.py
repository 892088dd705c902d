"""Parsing of times and durations."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tidelog.cli.when import NotATimeError, duration_text, iso_time, parse_duration_s, parse_time_ms

NOW = datetime(2026, 3, 1, 12, 0, 0)


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone that is not UTC and has summer time."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    return int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1h30m", 5400),
        ("1 hour and 5 minutes", 3900),
        ("2 days, 3 hours", 2 * 86400 + 3 * 3600),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("1w", 604800),
        (" 10 Min ", 600),
        ("0s", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "h", "ten minutes", "10 lightyears", "1h foo", "-5m", "5m!", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(NotATimeError, match="examples: 90s, 1h30m, 2 days"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "timestamp_ms"),
    [
        ("10 minutes ago", utc(2026, 3, 1, 10, 50)),
        ("10 Minutes Ago", utc(2026, 3, 1, 10, 50)),
        ("1h30m", utc(2026, 3, 1, 9, 30)),
        ("now", utc(2026, 3, 1, 11)),
        ("today", utc(2026, 2, 28, 23)),
        ("yesterday", utc(2026, 2, 27, 23)),
        ("2026-02-01", utc(2026, 1, 31, 23)),
        ("2026-02-01T06:00", utc(2026, 2, 1, 5)),
        ("2025-07-01 06:00:00", utc(2025, 7, 1, 4)),  # summer time then, though not now
        ("2026-02-01T06:00Z", utc(2026, 2, 1, 6)),
        ("2026-02-01T06:00:00.250+05:30", utc(2026, 2, 1, 0, 30) + 250),
        ("1767225600000", 1767225600000),
        ("1970-01-01T00:00:00.001Z", 1),
        ("1969-12-31T23:59:59.999Z", 0),
        ("1960-01-01", 0),
        ("99999 weeks ago", 0),
        ("9" * 18, 10**18 - 1),
    ],
)
def test_moments(text: str, timestamp_ms: int) -> None:
    assert parse_time_ms(text, NOW) == timestamp_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "10 minutes from now",
        "2026-13-01",
        "12:00",
        "123456",
        "ago",
        "9" * 19,
        "9" * 400 + "d",
        "0001-01-01",
    ],
)
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(NotATimeError):
        parse_time_ms(text, NOW)


def test_a_timestamp_as_text() -> None:
    assert iso_time(1767323045678) == "2026-01-02T03:04:05.678Z"
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert iso_time(-62135596800000) == "0001-01-01T00:00:00.000Z"
    assert iso_time(2**62) == str(2**62)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "0.2 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (45.4, "45 s"),
        (59.4, "59 s"),
        (59.7, "1 min"),
        (3599.7, "1 h"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400, "1 d"),
        (100 * 3600, "4 d 4 h"),
        (604800, "7 d"),
    ],
)
def test_a_duration_for_people(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
