"""What a person sees of the sale: queue, rates and lag while it runs, then accounts, a plot and the best sellers."""

from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidelog.cli.plots import line_plot
from tidelog.demo.ledger import ACCEPTED, EXPIRED, SOLD_OUT
from tidelog.demo.stage import Result, Sample

RATE_WINDOW_S = 1.0
PLAIN_EVERY_S = 2.0
PLOT_HEIGHT = 14


class LiveView:
    """Shows samples as they come: redrawn in a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=8) if console.is_terminal else None
        self._samples: list[Sample] = []
        self._said_s = -PLAIN_EVERY_S

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
        elif sample.at_s - self._said_s >= PLAIN_EVERY_S:
            self._said_s = sample.at_s
            self._console.print(
                f"{sample.at_s:5.1f} s  sent {sample.sent:,}  settled {sample.settled:,}  queue {sample.queue:,}",
                highlight=False,
            )

    def _panel(self, sample: Sample, expected: int) -> Panel:
        into, out = self._rates(sample)
        bars = Table.grid(padding=(0, 2))
        bars.add_column(width=12)
        bars.add_column(width=34)
        bars.add_column(justify="right", width=16)
        bars.add_row("sent", ProgressBar(expected, sample.sent, complete_style="cyan"), f"{sample.sent:,}")
        bars.add_row("settled", ProgressBar(expected, sample.settled, complete_style="green"), f"{sample.settled:,}")
        bars.add_row("queue", ProgressBar(expected, sample.queue, complete_style="yellow"), f"{sample.queue:,} orders")
        facts = Table.grid(padding=(0, 2))
        facts.add_row("rates", f"in {into:,.0f}/s", f"out {out:,.0f}/s", f"outbox {sample.unpublished:,}")
        facts.add_row("outcomes", *(f"{name} {count:,}" for name, count in sample.counts.items()))
        facts.add_row("lag", *(f"{name} {sample.settled - seen:,}" for name, seen in sample.seen.items()))
        workers = Text("workers   ")
        for name, state in sample.workers.items():
            workers.append(f"{name} {state}   ", style="red" if state == "killed" else "green")
        return Panel(Group(bars, Text(), facts, Text(), workers), title=f"flash sale  {sample.at_s:.0f} s", width=76)

    def _rates(self, sample: Sample) -> tuple[float, float]:
        """Orders a second, sent and settled, over the last moment."""
        before = next((s for s in reversed(self._samples) if sample.at_s - s.at_s >= RATE_WINDOW_S), self._samples[0])
        seconds = max(sample.at_s - before.at_s, 1e-9)
        return (sample.sent - before.sent) / seconds, (sample.settled - before.settled) / seconds


def summary(console: Console, result: Result, directory: Path, *, spark: bool) -> None:
    """The accounts, the peak and its draining, best sellers, where the files are."""
    verdict, last = result.verdict, result.samples[-1]
    counts = verdict["counts"]
    balanced = not verdict["problems"]
    table = Table(title="Every order accounted for" if balanced else "The accounts do not balance", title_style="bold")
    table.add_column("")
    table.add_column("orders", justify="right")
    table.add_row("sent", f"{verdict['sent']:,}")
    for outcome in (ACCEPTED, SOLD_OUT, EXPIRED):
        table.add_row(f"  {outcome}", f"{counts[outcome]:,}")
    table.add_row("unaccounted for", f"{verdict['sent'] - sum(counts.values()):,}")
    table.add_row("decided twice", "0" if balanced else "see below")
    table.add_row("oversold units", f"{verdict['oversold']:,}")
    table.add_row("events published again, dropped by their id", f"{verdict['events_published_again']:,}")
    table.add_row("left out: cancellations", f"{result.left_out[0]:,}")
    table.add_row("left out: nothing sold or for nothing", f"{result.left_out[1]:,}")
    console.print(table)
    for problem in verdict["problems"]:
        console.print(f"[red]{problem}[/red]")
    console.print(Text(_plot(result.samples, min(console.width, 100))))
    if spark:
        console.print(_best_sellers(directory / "sales"))
    killed = ", ".join(name for name, state in last.workers.items() if state == "killed")
    console.print(f"{result.duration_s:.0f} s; killed in the middle: {killed}. Files: {directory}", highlight=False)


def _plot(samples: list[Sample], width: int) -> str:
    """Orders that wait in the log, over time."""
    return line_plot(
        [sample.at_s for sample in samples],
        [sample.queue for sample in samples],
        title="Orders waiting: the peak comes in, the workers drain it",
        x_label="seconds",
        width=width,
        height=PLOT_HEIGHT,
    )


def _best_sellers(sales: Path, most: int = 5) -> Table:
    """From the pipeline's Parquet files."""
    import pyarrow.dataset as dataset

    sold = dataset.dataset(sales, partitioning="hive").to_table(columns=["product", "description", "units", "pence"])
    totals = sold.group_by("product").aggregate([("units", "sum"), ("pence", "sum"), ("description", "max")])
    rows = sorted(totals.to_pylist(), key=lambda row: (-row["pence_sum"], row["product"]))[:most]
    table = Table(title="Best sellers, from Parquet", title_style="bold")
    for column in ("product", "description"):
        table.add_column(column)
    for column in ("units", "GBP"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row["product"], row["description_max"], f"{row['units_sum']:,}", f"{row['pence_sum'] / 100:,.2f}")
    return table
