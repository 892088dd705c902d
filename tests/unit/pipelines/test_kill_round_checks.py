"""The checks of the rounds of kills of a Spark query (`script/spark-rounds`) find each planted fault, and no other."""

import json
import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from random import Random
from threading import Timer
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_rounds_harness import processes, program
from spark_rounds_harness.checker import NotExactlyOnce, check, check_versions
from spark_rounds_harness.keys import PARTITIONS, key_of, last_versions
from spark_rounds_harness.rounds import Life, Round
from spark_rounds_harness.sinks import SINKS, Target

BATCH = 300
"""Number of records of a full micro-batch."""
COUNT = 6000
"""Number of records after ten rounds."""


def written(batches: list[int]) -> dict[int, int]:
    """Return the rows of a sink with a key to which these micro-batches of 300 records were written."""
    rows: dict[int, int] = {}
    for batch in batches:
        rows |= {key_of(number): number for number in range(batch * BATCH, (batch + 1) * BATCH)}
    return rows


def test_records_of_the_input_are_versions_of_keys() -> None:
    assert [key_of(number) for number in range(15)] == [0, 1, 2, 0, 1, 2, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert [number for number in range(COUNT) if key_of(number) == 24] == [24, 27, 330, 3033]
    assert all(key_of(number) % PARTITIONS == number % PARTITIONS for number in range(COUNT))
    for batch in range(COUNT // BATCH):
        keys = [key_of(number) for number in range(batch * BATCH, (batch + 1) * BATCH)]
        assert len(set(keys)) < len(keys), "no micro-batch needs order_by"


def test_the_right_rows_pass() -> None:
    last = last_versions(600)
    assert check_versions(reversed(last.items()), 600) == (
        "600 records, 375 keys, each with one row and its last version"
    )
    assert check(map(str, range(600)), 600) == "600 records exactly once"


def test_a_missing_key_is_reported() -> None:
    rows = last_versions(600)
    del rows[24]
    with pytest.raises(NotExactlyOnce, match=r"^of 375 keys of 600 records: 1 without a row, such as \[24\]$"):
        check_versions(rows.items(), 600)


def test_a_second_row_of_a_key_is_reported() -> None:
    rows = [*last_versions(600).items(), (24, 330)]
    with pytest.raises(NotExactlyOnce, match=r"records: 1 with several rows, such as \[24\]$"):
        check_versions(rows, 600)


def test_an_old_version_is_reported() -> None:
    rows = last_versions(600) | {24: 27}
    with pytest.raises(NotExactlyOnce, match=r"records: 1 with an old version, such as \['24: 27, not 330'\]$"):
        check_versions(rows.items(), 600)


@pytest.mark.parametrize(
    ("key", "version"),
    [(24, 328), (24, None), (24, 3033), (25, 330), (600, 600), (None, 330)],
    ids=["of another key", "null", "not written yet", "under another key", "not in the input", "without a key"],
)
def test_a_row_that_was_never_written_is_reported(key: int | None, version: int | None) -> None:
    rows = [(known, last) for known, last in last_versions(600).items() if known != key]
    with pytest.raises(
        NotExactlyOnce, match=rf"1 with a row that is not in the input, such as \[\({key}, {version}\)\]$"
    ):
        check_versions([*rows, (key, version)], 600)


def test_each_lost_micro_batch_is_reported() -> None:
    """At the end of its round and later, although later micro-batches have the same keys."""
    for count in range(2, COUNT // BATCH + 1, 2):
        check_versions(written(list(range(count))).items(), count * BATCH)
        for lost in range(count):
            kept = [batch for batch in range(count) if batch != lost]
            with pytest.raises(NotExactlyOnce, match=r"without a row|with an old version"):
                check_versions(written(kept).items(), count * BATCH)


def test_each_micro_batch_that_is_written_again_after_the_next_one_is_reported() -> None:
    for count in range(2, COUNT // BATCH + 1, 2):
        with pytest.raises(NotExactlyOnce, match=r"records: \d+ with an old version, such as \['\d+: [^;]*$"):
            check_versions(written([*range(count), count - 2]).items(), count * BATCH)


@pytest.mark.parametrize("sink", ["delta-key", "sql-key"])
def test_the_rows_of_a_table_are_checked(tmp_path: Path, sink: str) -> None:
    last = last_versions(60)
    chosen, target = SINKS[sink], Target("", "", tmp_path)
    append = append_to_delta if sink == "delta-key" else append_to_sqlite
    append(tmp_path, list(last.items()))
    assert chosen.contents.check(chosen.read(target), 60) == (
        f"60 records, {len(last)} keys, each with one row and its last version"
    )
    append(tmp_path, [(0, 0)])
    with pytest.raises(NotExactlyOnce, match=r"1 with several rows, such as \[0\]; 1 with an old version"):
        chosen.contents.check(chosen.read(target), 60)


def append_to_delta(folder: Path, rows: list[tuple[int, int]]) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs tidelog[lake]")
    deltalake = pytest.importorskip("deltalake", reason="needs tidelog[lake]")
    table = pa.table({"id": [row[0] for row in rows], "version": [row[1] for row in rows]})
    deltalake.write_deltalake(folder / "delta", table, mode="append")


def append_to_sqlite(folder: Path, rows: list[tuple[int, int]]) -> None:
    with closing(sqlite3.connect(folder / "rounds.db")) as connection, connection:
        connection.execute("create table if not exists rows_of_rounds (id bigint, version bigint)")
        connection.executemany("insert into rows_of_rounds values (?, ?)", rows)


@pytest.mark.parametrize(
    ("sink", "promise"),
    [
        ("topic", "every record exactly once"),
        ("delta-key", "one row for each key, with its last version"),
        ("sql-key", "one row for each key, with its last version"),
    ],
)
def test_reports_say_what_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sink: str, promise: str
) -> None:
    checked = "what the check returned"
    life = SimpleNamespace(
        count=600, close=lambda: None, run_round=lambda number: Round(number, "driver", 4, 0, 1, 20.0, checked)
    )
    monkeypatch.setattr(program, "Life", lambda *_arguments: life)
    results = tmp_path / "results"
    arguments = ["--sink", sink, "--rounds", "1", "--bootstrap", "unused:1", "--directory", str(tmp_path)]
    assert program.main([*arguments, "--results", str(results)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("1 starts, what the check returned, 20 s")
    assert printed[1].startswith(f"1 rounds of sink {sink}: {promise}, ")
    assert json.loads(results.read_text())["checked"] == checked


def test_a_kill_returns_when_the_processes_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next kill could find processes that are about to end, and count although nothing worked."""
    send = os.kill
    monkeypatch.setattr(os, "kill", lambda pid, number: Timer(0.3, send, (pid, number)).start())
    with subprocess.Popen(["sleep", "600"]) as child:
        assert child.pid in processes.descendants(os.getpid())
        processes.kill([child.pid])
        assert child.pid not in processes.descendants(os.getpid()), "an ended process counts as one to kill"
        assert child.poll() == -signal.SIGKILL


def test_the_kill_of_a_driver_that_has_ended_is_not_counted() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    life = SimpleNamespace(
        count=600,
        add_records=lambda _count: None,
        _child=ended,
        _committed=lambda: 0,
        _duration_s=0.0,
        _end_of_last_batch=lambda: 600,
        _random=Random(1),
        _start_if_dead=lambda: 0,
    )
    assert Life._kill_once(cast("Any", life), 1, "driver") == (0, 0)
