"""Commands on a topic with an open transaction that Kafka wrote: committed records end before it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.testing import Broker

GOLDEN = Path(__file__).parents[2] / "golden" / "segments" / "kafka-4.3.1"
LIMIT_S = 30

Run = Callable[..., list[str]]

NOTE = (
    "Note: offset {} and later offsets of partition 0 are not shown, because a transaction is open there. tidelog"
    " transaction describe-producers --topic transactions:0 --open shows its producer; with -X"
    " isolation.level=read_uncommitted, consume shows the records.\n"
)


@pytest.fixture(scope="module")
def tidelog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    data = tmp_path_factory.mktemp("transactions") / "data"
    shutil.copytree(GOLDEN, data)
    with Broker(data=data) as broker:
        environment = os.environ | {"TIDELOG_BOOTSTRAP": broker.bootstrap}

        def run(*arguments: str, errors: bool = False) -> list[str]:
            command = [sys.executable, "-m", "tidelog", *arguments]
            ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S)
            assert ran.returncode == 0, ran.stderr
            return (ran.stderr if errors else ran.stdout).splitlines()

        yield run


COMMITTED = ["committed 0", "committed 1", "committed 2"]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (["--from-beginning"], COMMITTED),
        (["--from-beginning", "--group", "g"], COMMITTED),
        (["--since", "2000-01-01"], COMMITTED),
        (["--offset", "2"], COMMITTED[2:]),
    ],
)
def test_the_end_is_that_of_what_is_committed(tidelog: Run, where: list[str], found: list[str]) -> None:
    assert tidelog("consume", "transactions", *where, "--until-end") == found


def test_bench_reads_what_is_committed(tidelog: Run) -> None:
    [line, *_] = [line for line in tidelog("bench", "consume", "--topic", "transactions") if "Records read" in line]
    assert line.split()[-1] == "3"


def test_the_end_of_all_that_was_written_where_that_is_wanted(tidelog: Run) -> None:
    found = tidelog("consume", "transactions", "-B", "-e", "-X", "isolation.level=read_uncommitted")
    assert found[:3] == COMMITTED
    assert found[-3:] == ["open for ever 0", "open for ever 1", "plain"]


@pytest.mark.parametrize("where", [["-B"], ["-B", "--group", "g2"], ["--offset", "1000"]])
def test_a_note_says_why_the_last_records_are_not_shown(tidelog: Run, where: list[str]) -> None:
    [open_transaction] = json.loads(
        "".join(tidelog("transaction", "describe-producers", "-t", "transactions", "--open", "--json"))
    )
    note = NOTE.format(open_transaction["start_offset"]).rstrip()
    assert tidelog("consume", "transactions", *where, "-e", errors=True)[-1] == note


@pytest.mark.parametrize("where", [["-e", "-X", "isolation.level=read_uncommitted"], ["-n", "1"], ["-n", "1", "-e"]])
def test_no_note_if_the_records_were_not_wanted_or_are_shown(tidelog: Run, where: list[str]) -> None:
    assert tidelog("consume", "transactions", "-B", *where, errors=True) == []
