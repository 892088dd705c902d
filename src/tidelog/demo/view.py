"""The display of the sale. During the sale: queue, rates and lag. After it: orders by outcome, a plot, best sellers."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from tidelog.cli.plots import line_plot
from tidelog.cli.tables import Column, Table, print_table
from tidelog.demo.ledger import ACCEPTED, EXPIRED, SOLD_OUT
from tidelog.demo.stage import Result, Sample

RATE_WINDOW_S = 1.0
"""Time over which the displayed rates are computed, in seconds."""
PLAIN_EVERY_S = 2.0
"""Without a terminal: time between two lines of the same phase, in seconds."""
PLOT_HEIGHT = 14
PANEL_WIDTH = 76


class LiveView:
    """Show the newest sample: in a terminal as a panel that is redrawn, otherwise as a plain line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=8) if console.is_terminal else None
        self._samples: list[Sample] = []
        self._began_s = time.monotonic()
        self._printed_at_s = -PLAIN_EVERY_S
        self._phase = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, sample: Sample, expected: int) -> None:
        self._samples.append(sample)
        if self._live is not None:
            self._live.update(self._panel(sample, expected))
        else:
            details = f"sent {sample.sent:,} of {expected:,}  settled {sample.settled:,}  queue {sample.queue:,}"
            self._print_line("selling", details)

    def event(self, text: str) -> None:
        at_s = time.monotonic() - self._began_s
        self._console.print(f"{at_s:5.1f} s  {text}", highlight=False, soft_wrap=True)

    def phase(self, name: str) -> None:
        if self._live is None:
            last = self._samples[-1] if self._samples else None
            self._print_line(name, f"settled {last.settled:,}" if last else "")
        elif name != self._phase:
            self._phase = name
            self._live.console.print(f"{name} ...", highlight=False)

    def _print_line(self, phase: str, details: str) -> None:
        """Print a plain line if the phase is new, or if PLAIN_EVERY_S have passed since the last line."""
        at_s = time.monotonic() - self._began_s
        if phase != self._phase or at_s - self._printed_at_s >= PLAIN_EVERY_S:
            self._phase, self._printed_at_s = phase, at_s
            self._console.print(f"{at_s:5.1f} s  {phase}  {details}".rstrip(), highlight=False, soft_wrap=True)

    def _panel(self, sample: Sample, expected: int) -> Panel:
        sent_per_s, settled_per_s = self._rates(sample)
        bars = Grid.grid(padding=(0, 2))
        bars.add_column(width=7)
        # The width of the panel minus the width of the other columns.
        bars.add_column(width=max(min(self._console.width, PANEL_WIDTH) - 37, 4))
        bars.add_column(justify="right", width=14)
        bars.add_row("sent", ProgressBar(expected, sample.sent, complete_style="cyan"), f"{sample.sent:,}")
        bars.add_row("settled", ProgressBar(expected, sample.settled, complete_style="green"), f"{sample.settled:,}")
        bars.add_row("queue", ProgressBar(expected, sample.queue, complete_style="yellow"), f"{sample.queue:,} orders")
        details = Grid.grid(padding=(0, 2))
        rates = (f"in {sent_per_s:,.0f}/s", f"out {settled_per_s:,.0f}/s", f"outbox {sample.unpublished:,}")
        details.add_row("rates", "   ".join(rates))
        details.add_row("outcomes", "   ".join(f"{name} {count:,}" for name, count in sample.counts.items()))
        details.add_row("lag", "   ".join(f"{name} {sample.settled - seen:,}" for name, seen in sample.seen.items()))
        workers = _states("workers   ", sample.workers)
        content = Group(bars, Text(), details, Text(), workers)
        if sample.brokers:
            content.renderables.append(_states("brokers   ", sample.brokers))
        return Panel(content, title=f"flash sale  {sample.at_s:.0f} s", width=PANEL_WIDTH)

    def _rates(self, sample: Sample) -> tuple[float, float]:
        """Return the orders per second, sent and settled, over the last RATE_WINDOW_S."""
        earlier = next((s for s in reversed(self._samples) if sample.at_s - s.at_s >= RATE_WINDOW_S), self._samples[0])
        seconds = max(sample.at_s - earlier.at_s, 1e-9)
        return (sample.sent - earlier.sent) / seconds, (sample.settled - earlier.settled) / seconds


def _states(title: str, states: dict[str, str]) -> Text:
    text = Text(title)
    for name, state in states.items():
        text.append(f"{name} {state}   ", style="red" if state == "killed" else "green")
    return text


def summary(console: Console, result: Result, directory: Path, *, spark: bool) -> None:
    """Print the numbers of orders by outcome, a plot of the queue, the best sellers, and the location of the files."""
    verdict, last = result.verdict, result.samples[-1]
    print_table(accounts(result))
    console.print()
    for problem in verdict["problems"]:
        console.print(f"[red]{problem}[/red]")
    console.print(Text(_plot(result.samples, min(console.width, 100))))
    if spark:
        print_table(_best_sellers(directory / "sales"))
        console.print()
    if result.takeover is not None:
        waits = ", ".join(f"{seconds:.1f} s for an {kind}" for kind, seconds in result.longest_waits_s.items())
        console.print(f"{result.takeover}. Longest wait for an acknowledgement: {waits}", highlight=False)
    killed = ", ".join(name for name, state in last.workers.items() if state == "killed")
    console.print(f"{result.duration_s:.0f} s; killed in the middle: {killed}. Files: {directory}", highlight=False)


def accounts(result: Result) -> Table:
    verdict = result.verdict
    counts = verdict["counts"]
    balanced = not verdict["problems"]
    rows = [
        ("sent", f"{verdict['sent']:,}"),
        *((f"  {outcome}", f"{counts[outcome]:,}") for outcome in (ACCEPTED, SOLD_OUT, EXPIRED)),
        ("unaccounted for", f"{verdict['sent'] - sum(counts.values()):,}"),
        ("decided twice", "0" if balanced else "see below"),
        ("oversold units", f"{verdict['oversold']:,}"),
        ("events published again, dropped by their id", f"{verdict['events_published_again']:,}"),
        ("left out: cancellations", f"{result.left_out[0]:,}"),
        ("left out: no quantity or no price", f"{result.left_out[1]:,}"),
    ]
    title = "Every order accounted for" if balanced else "The accounts do not balance"
    return Table([Column("What"), Column("Orders", right=True, spare=-1)], rows, title=title, json=False)


def _plot(samples: list[Sample], width: int) -> str:
    """Return a plot of the orders that wait in the log, over time."""
    return line_plot(
        [sample.at_s for sample in samples],
        [sample.queue for sample in samples],
        title="Orders in the queue: each burst adds orders, the workers process them",
        x_label="seconds",
        width=width,
        height=PLOT_HEIGHT,
    )


def _best_sellers(sales: Path, limit: int = 5) -> Table:
    """Return the best sellers, from the pipeline's Parquet files."""
    import pyarrow.dataset as dataset

    sold = dataset.dataset(sales, partitioning="hive").to_table(columns=["product", "description", "units", "pence"])
    totals = sold.group_by("product").aggregate([("units", "sum"), ("pence", "sum"), ("description", "max")])
    rows = sorted(totals.to_pylist(), key=lambda row: (-row["pence_sum"], row["product"]))[:limit]
    return best_sellers([(row["product"], row["description_max"], row["units_sum"], row["pence_sum"]) for row in rows])


def best_sellers(rows: Sequence[tuple[str, str, int, int]]) -> Table:
    """Return the table for rows of product, description, units and pence."""
    columns = [
        Column("Product"),
        Column("Description", spare=1),
        Column("Units", right=True),
        Column("GBP", right=True, spare=-1),
    ]
    cells = [(product, text, f"{units:,}", f"{pence / 100:,.2f}") for product, text, units, pence in rows]
    return Table(columns, cells, title="Best sellers, from Parquet", json=False)
