"""`tidelog pipeline dry-run`: print the result of a pipeline for a sample."""

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.cli.tables import Column, Table, counted, print_heading, print_table, printable
from tidelog.pipelines.declarations import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REASONS_MAX = 10
"""For each source, at most this many reasons for dead letters are printed: the most frequent ones."""
CELL_MAX = 60
"""Upper bound on the characters of a cell; the rest is cut off."""


def dry_run(
    pipeline: Pipeline, bootstrap: str, rows_max: int, show: int, begin: str | int | None, settings: Mapping[str, str]
) -> None:
    from tidelog.pipelines.dry_runs import errors_of_spark, sample
    from tidelog.pipelines.session import pipeline_session, start_session

    if sys.stderr.isatty():
        print("Starting Spark ...", file=sys.stderr)
    log = Path(tempfile.mkdtemp(prefix="tidelog-dry-run-")) / "spark.log"
    spark = start_session([pipeline], settings=settings, log=log)
    try:
        spark.sparkContext.setLogLevel("OFF")
        taken = sample(pipeline, pipeline_session(spark, pipeline, settings), bootstrap, rows_max, begin)
        for source in taken.sources:
            dead = sum(source.unparsed.values())
            note = f", {counted(dead, 'dead letter')}" if dead else ""
            print(f"{source.description}: {counted(source.records, 'record')} read{note}")
            ranked = sorted(source.unparsed.items(), key=lambda item: -item[1])
            for reason, number in ranked[:REASONS_MAX]:
                print(f"  {number}: {printable(reason)}")
            if dead:
                print(f"  the first dead letter: {source.example}")
        for name, frame in taken.results.items():
            print()
            print_heading(f"{name} -> {pipeline.sinks[name].describe()}")
            with errors_of_spark(f"pipeline {pipeline.name}, result for {name}"):
                print_rows(frame, show)
    finally:
        spark.stop()
    shutil.rmtree(log.parent, ignore_errors=True)  # after an error, Spark's log remains


def print_rows(frame: "DataFrame", show: int) -> None:
    """Print the first `show` rows of a DataFrame. If there are more rows, or no rows at all, a line says so."""
    rows = frame.limit(show + 1).collect()
    numbers = {
        name for name, kind in frame.dtypes if kind in ("int", "bigint", "double", "float", "smallint", "tinyint")
    }
    columns = [Column(printable(name), right=name in numbers) for name in frame.columns]
    print_table(Table(columns, [[cell_text(value) for value in row] for row in rows[:show]], json=False))
    if not rows:
        print("The result has no rows.")
    if len(rows) > show:
        print(f"The result has more than {show} rows; --show N prints the first N.")


def cell_text(value: object) -> str:
    """Return a value as one short line. Binary values are shown as text, structs and arrays as Python prints them."""
    if value is None:
        return "-"
    text = bytes(value).decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)
    text = printable(text)
    return text if len(text) <= CELL_MAX else text[: CELL_MAX - 3] + "..."
