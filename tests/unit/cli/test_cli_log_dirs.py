"""`tidelog log dirs` against a broker with two data directories."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from process_harness.child import address_of, start
from tidelog.cli import log_dirs
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.log_dirs import LogDirectory, LogDirMove, Replica, directory_table, parse_move, partition_table

LIMIT_S = 30


class Running:
    """A broker, and the command line beside it."""

    def __init__(self, directories: list[Path], bootstrap: str) -> None:
        self.directories = directories
        self.bootstrap = bootstrap

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """What the command prints; an error's line when `code` is not 0."""
        command = [sys.executable, "-m", "tidelog", *map(str, arguments)]
        environment = os.environ | {"TIDELOG_BOOTSTRAP": self.bootstrap, "COLUMNS": "200"}
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S)
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran.stderr if code else ran.stdout

    def places(self, topic: str) -> dict[str, list[int]]:
        """Partitions by the directory's name."""
        found = json.loads(self("log", "dirs", "--json", "--topic", topic))
        return {Path(d["path"]).name: [r["partition"] for r in d["replicas"]] for d in found}


@pytest.fixture(scope="module")
def tidelog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    parent = tmp_path_factory.mktemp("disks")
    directories = [parent / "a", parent / "b"]
    with (parent / "log").open("wb") as log:
        broker = start(Path(",".join(map(str, directories))), log)
        try:
            host, port = address_of(broker)
            yield Running(directories, f"{host}:{port}")
            broker.terminate()
            assert broker.wait(LIMIT_S) == 0
        finally:
            broker.kill()
            broker.communicate()


def test_what_lies_where(tidelog: Running) -> None:
    tidelog("topic", "create", "shown", "-p", 4)
    assert {name: len(partitions) for name, partitions in tidelog.places("shown").items()} == {"a": 2, "b": 2}
    lines = tidelog("log", "dirs", "--topic", "shown").splitlines()
    assert lines[0].split() == ["BROKER", "DIRECTORY", "STATE", "PARTITIONS", "SIZE", "FREE", "OF"]
    assert [line.split()[1:4] for line in lines[1:]] == [[str(d), "in", "use"] for d in tidelog.directories]
    lines = tidelog("log", "dirs", "--topic", "shown", "--partitions").splitlines()
    assert sorted(line.split()[2] for line in lines[1:]) == [f"shown-{number}" for number in range(4)]


def test_moving(tidelog: Running) -> None:
    tidelog("topic", "create", "moved", "-p", 2)
    a, b = tidelog.directories
    printed = tidelog("log", "dirs", "--move", f"moved-0={b}/", "--move", f"moved-1={b}", "--wait")
    assert sorted(printed.splitlines()) == [f"Moved moved-0 to {b}.", f"Moved moved-1 to {b}."]
    assert tidelog.places("moved") == {"a": [], "b": [0, 1]}
    assert (b / "moved-0" / "partition.metadata").exists()
    assert tidelog("log", "dirs", "--move", f"moved-0={a}") == f"Moving moved-0 to {a}.\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--move", "refused-0=/no/such"], "/no/such is not a data directory of broker 1; its data directories are "),
        (["--move", "refused-7=/no/such"], "refused-7 is in no usable data directory on any broker"),
        (["--move", "refused-0=/no/such", "--broker", 5], "refused-0 is in no usable data directory on broker 5"),
        (["--broker", 5], "there is no broker 5; the cluster has the broker 1"),
        (["--topic", "nothing"], "no directory has a partition of nothing"),
    ],
)
def test_what_is_refused(tidelog: Running, arguments: list[object], line: str) -> None:
    tidelog("topic", "create", "refused", "--if-not-exists")
    assert line in tidelog("log", "dirs", *arguments, code=1)


def test_nobody_there() -> None:
    assert "nothing listens on" in Running([], "127.0.0.1:1")("log", "dirs", code=1)


def test_a_partition_that_goes_while_its_move_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    there, copy = Replica("t", 0, 10, 0, False), Replica("t", 0, 5, 1, True)
    looks = iter([([there], [copy]), ([], []), ([there], [])])

    def directories(client: object, topics: Sequence[str]) -> list[LogDirectory]:
        a, b = next(looks)
        return [LogDirectory(1, "/a", "", -1, -1, False, a), LogDirectory(1, "/b", "", -1, -1, False, b)]

    monkeypatch.setattr(log_dirs, "describe_directories", directories)
    with pytest.raises(CommandError, match="t-0 is in no data directory any more: its topic was deleted"):
        log_dirs.wait_for_moves(None, {LogDirMove("t", 0, "/b"): [1]})  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="t-0 is still in /a"):
        log_dirs.wait_for_moves(None, {LogDirMove("t", 0, "/b"): [1]})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["orders=/disk", "orders-x=/disk", "-1=/disk", "orders-0", "orders-0="])
def test_what_is_no_move(text: str) -> None:
    with pytest.raises(UsageError, match="for example --move orders-0="):
        parse_move(text)


def test_moves_are_parsed_from_the_right() -> None:
    assert parse_move("a-b-3=/disk/") == LogDirMove("a-b", 3, "/disk")
    assert parse_move("t-0=/") == LogDirMove("t", 0, "/")


def test_the_states_of_directories_and_copies() -> None:
    copy = Replica("t", 0, 10, 1, True)
    found = [
        LogDirectory(1, "/a", "KAFKA_STORAGE_ERROR", -1, -1, False, []),
        LogDirectory(1, "/b", "", 4096, 1024, True, [copy, Replica("t", 1, 2048, 0, False)]),
    ]
    assert [row[2:] for row in directory_table(found).rows] == [
        ["out of use (KAFKA_STORAGE_ERROR)", "0", "0 B", "-", "-"],
        ["cordoned", "2", "2.0 KiB", "1.0 KiB", "4.0 KiB"],
    ]
    assert [row[2:] for row in partition_table(found).rows] == [
        ["t-0", "10 B", "moving here, 1 offset behind"],
        ["t-1", "2.0 KiB", "in use"],
    ]
