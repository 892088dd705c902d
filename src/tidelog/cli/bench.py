"""`tidelog bench`: measure throughput of producing and consuming, and end-to-end latency."""

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import typer

from tidelog.cli import measure, offline
from tidelog.cli.cluster import describe, offsets
from tidelog.cli.connection import (
    LOCALHOST,
    PARTITIONS_MAX,
    AsJson,
    Bootstrap,
    ClientSettings,
    ConnectionOptions,
    connect,
)
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.produce import ACKS, CODECS
from tidelog.cli.tables import Column, Table, console, count, counted, print_json, print_table, size, stdout_is_utf8

app = typer.Typer(add_completion=False, no_args_is_help=True)

PERCENTS = (50, 90, 95, 99, 99.9)
"""Percentiles that are printed."""
RECORD_SIZE_MAX = 1_000_000_000
"""Upper bound on the size of a record's value, in bytes: librdkafka accepts no larger message.max.bytes."""

Records = Annotated[int, typer.Option("--records", "-n", min=1, metavar="N", help="Number of records.")]
SIZE_BYTES = 100
"""Default size of a record's value, in bytes."""
SIZE_OPTION = typer.Option(
    "--size",
    min=1,
    max=RECORD_SIZE_MAX,
    metavar="BYTES",
    help=f"Size of each record's value; default: {SIZE_BYTES}.",
    show_default=False,
)
RecordSize = Annotated[int, SIZE_OPTION]
SizeOfNewRecords = Annotated[int | None, SIZE_OPTION]
Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        "-p",
        min=1,
        max=PARTITIONS_MAX,
        metavar="N",
        help="Partitions of the temporary topic; default: 1.",
        show_default=False,
    ),
]
Topic = Annotated[
    str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Use this topic; default: a temporary one.")
]
Acks = Annotated[
    str, typer.Option("--acks", "-a", metavar="|".join(ACKS), help="Replicas that must acknowledge a record.")
]
Codec = Annotated[str, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")]


@app.callback()
def bench() -> None:
    """Measure a cluster's throughput and latency, as librdkafka sees them.

    Examples:

    $ tidelog bench produce
    $ tidelog bench consume --size 1000
    $ tidelog bench latency --rate 10000
    """


@app.command()
def produce(
    records: Records = 1_000_000,
    record_size: RecordSize = SIZE_BYTES,
    partitions: Partitions = None,
    topic: Topic = None,
    acks: Acks = "all",
    compression: Codec = "none",
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006 - typer copies it
) -> None:
    """Measure how fast records are written.

    The clock stops when the last record is acknowledged. All records have
    the same value, so --compression works unusually well.

    Examples:

    $ tidelog bench produce
    $ tidelog bench produce --records 100000 --size 1000 --acks 1
    $ tidelog bench produce --partitions 12 --json
    """
    check_topic_options(topic, partitions)
    settings = producer_settings(acks, compression)
    connection = connect(bootstrap, client)
    with topic_or_temporary(connection, topic, partitions) as name, progress("Writing", records) as on_progress:
        result = measure.measure_produce(connection, name, records, os.urandom(record_size), settings, on_progress)
    report_throughput("written", result, json)


@app.command()
def consume(
    records: Records = 1_000_000,
    record_size: SizeOfNewRecords = None,
    partitions: Partitions = None,
    topic: Topic = None,
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Measure how fast records are read.

    First a temporary topic is filled with records. With --topic, the command
    reads existing records of this topic instead, at most --records of them.

    Examples:

    $ tidelog bench consume
    $ tidelog bench consume --topic orders --records 500000
    """
    check_topic_options(topic, partitions)
    if topic is not None and record_size is not None:
        raise UsageError("--size cannot be used with --topic, because the topic's existing records are read")
    connection = connect(bootstrap, client)
    with topic_or_temporary(connection, topic, partitions) as name:
        if topic is None:
            with progress("Filling", records) as on_progress:
                settings = producer_settings("all", "none")
                value = os.urandom(record_size or SIZE_BYTES)
                measure.measure_produce(connection, name, records, value, settings, on_progress)
        else:
            records = min(records, record_count(connection, name))
        with progress("Reading", records) as on_progress:
            result = measure.measure_consume(connection, name, records, on_progress)
        if topic is None and result.records < records:
            raise CommandError(f"only {result.records} of {counted(records, 'written record')} could be read back")
    report_throughput("read", result, json)


@app.command()
def latency(
    rate: Annotated[float, typer.Option("--rate", "-r", min=0.1, metavar="N", help="Records per second.")] = 1000,
    seconds: Annotated[float, typer.Option("--seconds", "-s", min=0.1, metavar="S", help="How long to measure.")] = 10,
    record_size: RecordSize = SIZE_BYTES,
    topic: Topic = None,
    acks: Acks = "all",
    json: AsJson = False,
    bootstrap: Bootstrap = LOCALHOST,
    client: ClientSettings = [],  # noqa: B006
) -> None:
    """Measure how long a record takes from producer to consumer.

    Records are written at a steady rate. The latency of a record is measured
    from the time at which it should be written, so a stall increases the
    latency of every record that it delays.

    Examples:

    $ tidelog bench latency
    $ tidelog bench latency --rate 10000 --seconds 30
    """
    if not math.isfinite(rate * seconds):
        raise UsageError("--rate and --seconds take finite numbers")
    settings = producer_settings(acks, "none")
    connection = connect(bootstrap, client)
    total = max(round(rate * seconds), 1)
    with topic_or_temporary(connection, topic, 1) as name, progress("Timing", total) as on_progress:
        result = measure.measure_latency(
            connection, name, rate, seconds, os.urandom(record_size), settings, on_progress
        )
    report_latency(result, json)


def check_topic_options(topic: str | None, partitions: int | None) -> None:
    """Raise UsageError if the number of partitions would have no effect."""
    if topic is not None and partitions is not None:
        raise UsageError("--partitions cannot be used with --topic, because the topic has its partitions already")


def producer_settings(acks: str, compression: str) -> dict[str, Any]:
    if acks not in ACKS:
        raise UsageError(f"--acks must be one of {', '.join(ACKS)}, not {acks!r}")
    if compression not in CODECS:
        raise UsageError(f"--compression must be one of {', '.join(CODECS)}, not {compression!r}")
    return {"acks": acks, "compression.type": compression}


@contextmanager
def topic_or_temporary(connection: ConnectionOptions, topic: str | None, partitions: int | None) -> Iterator[str]:
    """Yield `topic`. If `topic` is None, yield the name of a temporary topic for this measurement. Its number of
    partitions is `partitions`, or 1 if `partitions` is None.

    Raises CommandError if `topic` does not exist or one of its partitions is offline.
    """
    if topic is not None:
        with connection.open() as client:
            offline_partitions = offline.offline_partitions_of(describe(client, [topic]))
        if offline_partitions:
            raise offline.offline_error(
                offline_partitions, "Measuring the other partitions would not measure the topic."
            )
    with measure.temporary_topic(connection, partitions or 1) if topic is None else nullcontext(topic) as name:
        yield name


def record_count(connection: ConnectionOptions, topic: str) -> int:
    """Return an upper bound on the number of records in the topic. Raises CommandError if the topic is empty."""
    with connection.open() as client:
        known = offsets(client, describe(client, [topic]))
    for failure in known.failures.values():
        raise failure
    records = sum(partition.records for partition in known.offsets.values())
    if not records:
        raise CommandError(f"topic {topic} is empty: there is nothing to read")
    return records


@contextmanager
def progress(verb: str, records: int) -> Iterator[Callable[[measure.Point], None]]:
    """Yield a function that draws a progress bar on stderr. The bar is removed at the end of the block.

    If stderr is not a terminal, the function does nothing.
    """
    if not sys.stderr.isatty():
        yield lambda point: None
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=records, rate="")

        def on_progress(point: measure.Point) -> None:
            per_s = point.records / max(point.seconds, 1e-9)
            bar.update(
                task, completed=point.records, rate=f"{counted(point.records, 'record')}, {count(round(per_s))}/s"
            )

        yield on_progress


def report_throughput(verb: str, result: measure.Throughput, json: bool) -> None:
    per_s, bytes_per_s = result.records / result.seconds, result.size_bytes / result.seconds
    if json:
        print_json(
            {
                "records": result.records,
                "bytes": result.size_bytes,
                "seconds": round(result.seconds, 6),
                "records_per_s": round(per_s, 1),
                "bytes_per_s": round(bytes_per_s, 1),
                "ack_ms": percentiles_json(result.latencies_ms),
            }
        )
        return
    rows = [
        (f"Records {verb}", count(result.records)),
        ("Time", f"{result.seconds:.2f} s"),
        ("Records per second", count(round(per_s))),
        ("Bytes per second", size(bytes_per_s)),
    ]
    if result.latencies_ms:
        rows += [(f"Acknowledged, {name}", text) for name, text in percentile_rows(result.latencies_ms)]
    print_table(measures_table(rows))
    xs, ys = measure.rates(result.points)
    plot(xs, ys, f"records {verb} per second", "seconds")


def report_latency(result: measure.Latency, json: bool) -> None:
    if json:
        print_json(
            {
                "records": len(result.latencies_ms),
                "rate_wanted": result.rate_wanted,
                "rate_reached": round(result.rate_reached, 1),
                "end_to_end_ms": percentiles_json(result.latencies_ms),
            }
        )
        return
    rows = [
        ("Records", count(len(result.latencies_ms))),
        ("Rate", f"{count(round(result.rate_reached))}/s of {count(round(result.rate_wanted))}/s requested"),
        *((f"End to end, {name}", text) for name, text in percentile_rows(result.latencies_ms)),
    ]
    print_table(measures_table(rows))
    # On the x axis, 90%, 99%, 99.9% ... have equal distances, because the slowest records matter most: x is the number
    # of nines, for example 2 for 99%. The median is at 0.301, because 1 - 1/10**0.301 is 50%.
    nines = [step / 20 for step in range(1 + 20 * (len(str(len(result.latencies_ms))) - 1))]
    ys = [measure.percentile(result.latencies_ms, 100 - 100 / 10**nine) for nine in nines]
    ticks = [
        (0.0, "min"),
        (0.301, "50%"),
        (1.0, "90%"),
        (2.0, "99%"),
        (3.0, "99.9%"),
        (4.0, "99.99%"),
        (5.0, "99.999%"),
    ]
    plot(nines, ys, "end to end, ms, by percentile", "", [tick for tick in ticks if tick[0] <= nines[-1]])


def percentile_rows(latencies_ms: Sequence[float]) -> list[tuple[str, str]]:
    percentiles = [(f"p{percent:g}", measure.percentile(latencies_ms, percent)) for percent in PERCENTS]
    return [(name, milliseconds_text(value)) for name, value in [*percentiles, ("max", latencies_ms[-1])]]


def milliseconds_text(value: float) -> str:
    return f"{value:.3f} ms" if round(value, 3) < 10 else f"{value:.1f} ms"


def percentiles_json(latencies_ms: Sequence[float]) -> dict[str, float] | None:
    if not latencies_ms:
        return None
    percentiles = {f"p{percent:g}": round(measure.percentile(latencies_ms, percent), 4) for percent in PERCENTS}
    return percentiles | {"max": round(latencies_ms[-1], 4)}


def measures_table(rows: Sequence[tuple[str, str]]) -> Table:
    return Table([Column("Measure"), Column("Value", True)], rows)


def plot(
    xs: Sequence[float], ys: Sequence[float], title: str, x_label: str, ticks: Sequence[tuple[float, str]] | None = None
) -> None:
    """Print a line plot, if stdout is a terminal with UTF-8 and there are enough points for a curve."""
    if not sys.stdout.isatty() or not stdout_is_utf8() or len(xs) < 5:
        return
    from tidelog.cli.plots import line_plot

    print()
    screen = console()
    drawn = line_plot(xs, ys, title=title, x_label=x_label, width=min(screen.width, 100), x_ticks=ticks)
    screen.print(drawn, markup=False, style="cyan")
