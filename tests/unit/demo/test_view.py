"""The display without a terminal: plain lines, at least one for each phase."""

import io

import pytest
from rich.console import Console

from tidelog.demo import view
from tidelog.demo.stage import Sample


def sample(settled: int) -> Sample:
    return Sample(0.0, 20, {"accepted": settled}, 0, {}, {})


def test_a_pipe_gets_plain_lines_of_every_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("tidelog.demo.view.time.monotonic", lambda: now_s)
    written = io.StringIO()
    with view.LiveView(Console(file=written, width=40)) as shown:
        shown.phase("starting")
        now_s += 0.5
        shown.show(sample(1), 24_697)
        now_s += 0.5
        shown.show(sample(2), 24_697)  # too soon after the last line
        now_s += view.PLAIN_EVERY_S
        shown.show(sample(20), 24_697)
        shown.phase("Spark")
        now_s += 1.0
        shown.phase("Spark")
        now_s += view.PLAIN_EVERY_S
        shown.phase("Spark")
    assert written.getvalue().splitlines() == [
        "  0.0 s  starting",
        "  0.5 s  selling  sent 20 of 24,697  settled 1  queue 19",
        "  3.0 s  selling  sent 20 of 24,697  settled 20  queue 0",
        "  3.0 s  Spark  settled 20",
        "  6.0 s  Spark  settled 20",
    ]
