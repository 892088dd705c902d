"""The display: plain lines without a terminal, the panel, and the summary."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tidelog.demo import view
from tidelog.demo.brokers import Takeover
from tidelog.demo.stage import Result, Sample


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
        shown.event("broker 2 started again")  # at any time
        shown.phase("Spark")
        now_s += 1.0
        shown.phase("Spark")
        now_s += view.PLAIN_EVERY_S
        shown.phase("Spark")
    assert written.getvalue().splitlines() == [
        "  0.0 s  starting",
        "  0.5 s  selling  sent 20 of 24,697  settled 1  queue 19",
        "  3.0 s  selling  sent 20 of 24,697  settled 20  queue 0",
        "  3.0 s  broker 2 started again",
        "  3.0 s  Spark  settled 20",
        "  6.0 s  Spark  settled 20",
    ]


def test_the_panel_shows_the_states_of_the_brokers() -> None:
    written = io.StringIO()
    console = Console(file=written, width=100, force_terminal=True, color_system=None)
    running = view.LiveView(console)
    now = sample(5)._replace(brokers={"1": "works", "2": "killed"})
    running._samples.append(now)
    console.print(running._panel(now, 20))
    assert "brokers   1 works   2 killed" in written.getvalue()


@pytest.mark.parametrize("takeover", [None, Takeover(2, {1: 5, 3: 4}, 0.34)])
def test_the_summary_says_what_happened_to_a_broker(takeover: Takeover | None) -> None:
    written = io.StringIO()
    verdict = {"problems": [], "counts": {"accepted": 1, "sold out": 0, "expired": 0}, "sent": 1, "oversold": 0}
    result = Result([sample(1)], verdict | {"events_published_again": 0}, (0, 0), 9.0, takeover, {"order": 0.5})
    view.summary(Console(file=written, width=200), result, Path("sale"), spark=False)
    line = "broker 2 killed with -9: 9 leaders moved in 0.3 s (5 to broker 1, 4 to broker 3)"
    expected = f"{line}. Longest wait for an acknowledgement: 0.5 s for an order"
    assert (expected in written.getvalue()) == (takeover is not None)
