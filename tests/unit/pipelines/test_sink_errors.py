"""Errors of sinks that write files and tables: they name the sink, and say whether another attempt may succeed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa
import pymysql
import sqlalchemy as sa
from pyiceberg.exceptions import ForbiddenError, ServerError
from sqlalchemy.exc import OperationalError

from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines.declarations import PipelineError, TemporaryError
from tidelog.pipelines.sinks import commits
from tidelog.pipelines.sinks.delta import delta
from tidelog.pipelines.sinks.http import http, send_rows
from tidelog.pipelines.sinks.iceberg import iceberg
from tidelog.pipelines.sinks.object_errors import store_error
from tidelog.pipelines.sinks.outages import is_outage
from tidelog.pipelines.sinks.parquet import parquet
from tidelog.pipelines.sinks.sql import sql


def sinks(directory: Path, *partition_by: str) -> list[Any]:
    catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}
    return [
        delta(str(directory / "d"), partition_by=partition_by),
        parquet(str(directory / "p"), partition_by=partition_by),
        iceberg("lake.rows", catalog=catalog, partition_by=partition_by),
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("place",), "partition_by contains place, but there is no such column"),
        (("id", "text"), "partition_by contains all columns"),
    ],
)
def test_wrong_partition_columns_are_an_error_that_names_the_sink(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    for sink in sinks(tmp_path, *names):
        if message == "partition_by contains all columns" and sink.describe().startswith("iceberg"):
            continue  # its files contain the partition columns, too
        with pytest.raises(PipelineError, match=f"^{sink.describe()}: {message}"):
            opened(sink, None).write(Rows.numbers(0, 5), 0)  # type: ignore[arg-type]


def test_conflicts_with_other_writers_may_end_with_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(commits, "time", SimpleNamespace(sleep=pauses.append))

    def conflict() -> None:
        raise KeyError("version 7 exists")

    with pytest.raises(TemporaryError, match=r"delta /t: other writers changed the table .* 20 attempts .*version 7"):
        commits.commit(conflict, KeyError, "delta /t")
    assert len(pauses) == commits.ATTEMPTS_MAX - 1


NOBODY = "127.0.0.1:1"
"""An address at which nothing listens."""
S3 = {
    "AWS_ENDPOINT_URL": f"http://{NOBODY}",
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_REGION": "none",
    "max_retries": "0",
}


@pytest.mark.parametrize(
    "sink",
    [
        sql(f"postgresql+psycopg://user@{NOBODY}/x", "t"),
        sql(f"mysql+pymysql://user@{NOBODY}/x", "t"),
        delta("s3://bucket/t", storage_options=S3),
        iceberg("lake.rows", catalog={"type": "rest", "uri": f"http://{NOBODY}"}),
        iceberg("lake.rows", catalog={"type": "sql", "uri": f"postgresql+psycopg://user@{NOBODY}/x"}),
    ],
    ids=str,
)
def test_an_outage_may_end_before_another_attempt(sink: Any) -> None:
    with pytest.raises(TemporaryError, match=r"(?i)refused") as raised:
        opened(sink, None)  # type: ignore[arg-type]
    assert "\x1b" not in str(raised.value), "deltalake's messages have colors"


def test_an_endpoint_that_does_not_answer_may_answer_later() -> None:
    rows = [pa.RecordBatch.from_pydict({"body": ["{}"]})]
    with pytest.raises(TemporaryError, match=r"POST failed after 1 attempt: .*refused"):
        list(send_rows(iter(rows), http(f"http://{NOBODY}/x", attempts=1).request, 1, "k"))


def test_errors_that_another_attempt_repeats_are_not_temporary(tmp_path: Path) -> None:
    log = tmp_path / "t/_delta_log/00000000000000000000.json"
    log.parent.mkdir(parents=True)
    log.write_text('{"garbage')
    for sink in (
        delta(str(tmp_path / "t")),
        iceberg("lake.rows", catalog={"type": "nothing"}),
        sql(f"sqlite:///{tmp_path}/missing/x.db", "t"),
    ):
        with pytest.raises(PipelineError) as raised:
            opened(sink, None)  # type: ignore[arg-type]
        assert not isinstance(raised.value, TemporaryError)
    rows = [pa.RecordBatch.from_pydict({"body": ["{}"]})]
    with pytest.raises(PipelineError) as raised:
        list(send_rows(iter(rows), http("http://host:port/x", attempts=1).request, 1, "k"))
    assert not isinstance(raised.value, TemporaryError)


class Refused(Exception):
    """Has the name and the module that psycopg's error has."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(f"sqlstate {sqlstate}")
        self.sqlstate = sqlstate


Refused.__name__, Refused.__module__ = "OperationalError", "psycopg"


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        (pymysql.err.OperationalError(1053, "Server shutdown in progress"), True),
        (pymysql.err.OperationalError(1045, "Access denied"), False),
        (pymysql.err.OperationalError(1054, "Unknown column"), False),
        (Refused("57P01"), True),
        (Refused("53300"), True),
        (Refused(None), True),
        (Refused("28P01"), False),
        (sa.create_engine("sqlite://").dialect.import_dbapi().OperationalError("database is locked"), True),
        (sa.create_engine("sqlite://").dialect.import_dbapi().OperationalError("no such column: x"), False),
    ],
)
def test_errors_of_databases(original: BaseException, expected: bool) -> None:
    assert is_outage(OperationalError("insert", None, original)) == expected


def test_answers_of_a_catalog() -> None:
    assert is_outage(ServerError("RestError: Internal Server Error"))
    assert not is_outage(ForbiddenError("no"))


def test_a_table_with_other_partition_columns_is_refused(tmp_path: Path) -> None:
    for sink, other in zip(sinks(tmp_path, "id"), sinks(tmp_path, "text"), strict=True):
        opened(sink, None).write(Rows.numbers(0, 2), 0)  # type: ignore[arg-type]
        if "parquet" not in sink.describe():
            with pytest.raises(PipelineError, match=r"the table is partitioned by \['id'\], not \['text'\]"):
                opened(other, None).write(Rows.numbers(2, 4), 1)  # type: ignore[arg-type]
    for sink in sinks(tmp_path):
        opened(sink, None).write(Rows.numbers(2, 4), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "is_temporary"),
    [
        ("[Errno 111] Connection refused", True),
        ("Remote end closed connection without response", True),
        ("HTTPSConnectionPool(host='s3.example', port=443): Max retries exceeded", True),
        ("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation", True),
        ("HTTP status server error (500 Internal Server Error) for url", True),
        ("An error occurred (503) when calling the PutObject operation", True),
        ("column 512 has no type", False),
        ("s3://bucket/year=512/part-500.parquet is not a Parquet file", False),
        ("s3://bucket/connections/part.parquet is not a Parquet file", False),
        ("unknown option connection_limit", False),
    ],
)
def test_only_texts_about_a_store_are_temporary(text: str, is_temporary: bool) -> None:
    found = store_error("delta s3://bucket/t", "s3://bucket/t", OSError(text), [])
    assert isinstance(found, TemporaryError) == is_temporary
