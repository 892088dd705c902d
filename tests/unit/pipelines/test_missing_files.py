"""`file(tail=True)`: files that are missing for a while, and devices whose numbers change."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sources import tail
from tidelog.pipelines.sources.tail import BEGINNINGS, ENDS, HASHES, TailReader


def reader(pattern: Path | str) -> TailReader:
    return TailReader({"pattern": str(pattern), "begin": "earliest"})


def read_on(stream: TailReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the end of the next micro-batch, as the checkpoint stores it, and its lines."""
    end = json.loads(json.dumps(stream.latestOffset(start, None)))  # type: ignore[arg-type]
    return end, lines(stream, start, end)


def lines(stream: TailReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return sorted(row[0] for part in stream.partitions(start, end) for row in stream.read(part))


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_file_that_is_renamed_between_the_list_and_the_look_keeps_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\ntwo\n")
    stream = reader(f"{log}*")
    end, rows = read_on(stream, {})
    assert rows == ["one", "two"]
    real = tail.glob.glob

    def renaming(pattern: str) -> list[str]:
        found = real(pattern)
        log.rename(tmp_path / "app.log.1")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(tail.glob, "glob", renaming)
        assert read_on(stream, end) == (end, [])
    append(tmp_path / "app.log.1", "three\n")
    assert read_on(stream, end)[1] == ["three"]


def test_files_of_a_directory_that_is_away_for_a_while_keep_their_positions(tmp_path: Path) -> None:
    logs, away = tmp_path / "logs", tmp_path / "away"
    logs.mkdir()
    for name in ("a", "b"):
        (logs / f"{name}.log").write_text(f"{name}1\n")
    stream = reader(f"{logs}/*.log")
    end, rows = read_on(stream, {})
    assert rows == ["a1", "b1"]
    logs.rename(away)
    assert read_on(stream, end) == (end, [])
    away.rename(logs)
    append(logs / "b.log", "b2\n")
    end, rows = read_on(reader(f"{logs}/*.log"), end)
    assert rows == ["b2"]
    (logs / "a.log").unlink()
    append(logs / "b.log", "b3\n")
    following, rows = read_on(stream, end)
    assert (rows, set(following[ENDS])) == (["b3"], set(end[ENDS]))


def other_device(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset that was stored before the device got its present number."""
    return {
        key: {f"7777-{name.partition('-')[2]}": value for name, value in values.items()}
        for key, values in offset.items()
    }


def test_a_device_with_another_number_changes_nothing(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\ntwo\n")
    stream = reader(log)
    first, _ = read_on(stream, {})
    assert lines(stream, {}, other_device(first)) == ["one", "two"]  # planned before the restart, and repeated
    renumbered, rows = read_on(stream, other_device(first))
    assert (rows, renumbered[ENDS]) == ([], first[ENDS])
    assert renumbered[BEGINNINGS] == first[ENDS]
    append(log, "three\n")
    end, rows = read_on(stream, other_device(first))
    assert rows == ["three"]
    assert lines(reader(log), other_device(first), end) == ["three"]
    assert read_on(stream, renumbered)[1] == ["three"]
    assert read_on(stream, end) == (end, [])


def test_another_file_with_the_inode_of_a_missing_one_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\ntwo\n")
    stream = reader(log)
    first, _ = read_on(stream, {})
    log.write_text("1\n2\n3\n4\n5\n6\n")
    end, rows = read_on(stream, other_device(first))
    assert rows == ["1", "2", "3", "4", "5", "6"]
    assert set(end[ENDS]) == {*first[ENDS], *other_device(first)[ENDS]}
    with pytest.raises(PipelineError, match="was removed, truncated, replaced or renamed"):
        stream.partitions({}, other_device(first))


def test_the_oldest_missing_files_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MISSING_MAX", 2)
    stream = reader(tmp_path)
    end: dict[str, Any] = {}
    names = []
    held = []
    for number in range(4):
        log = tmp_path / f"{number}.log"
        log.write_text(f"{number}\n")
        held.append(log.open())  # so that no other file gets its inode
        end, rows = read_on(stream, end)
        assert rows == [str(number)]
        names.append(list(end[ENDS])[-1])
        log.unlink()
    end, _ = read_on(stream, end)
    for each in held:
        each.close()
    assert list(end[ENDS]) == names[2:]
    assert set(end[HASHES]) == set(names[2:])


def test_a_missing_file_without_a_hash_is_forgotten(tmp_path: Path) -> None:
    """Early versions of Tidelog stored no hashes, so another file with its inode could not be told apart from it."""
    log = tmp_path / "app.log"
    log.write_text("one\n")
    stream = reader(log)
    end, _ = read_on(stream, {})
    del end[HASHES]
    log.unlink()
    assert read_on(stream, end)[0] == {ENDS: {}, HASHES: {}}
