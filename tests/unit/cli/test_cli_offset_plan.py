"""Planned offsets: options and files, and the resulting offsets."""

from pathlib import Path

import pytest

from tidelog.cli.cluster import Offsets
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.group_offsets import ResetTarget, partitions_to_reset, report_omitted_partitions
from tidelog.cli.offset_plan import (
    OffsetChange,
    changes_json,
    changes_table,
    omitted_partitions,
    plan,
    read_offsets,
    topics_and_partitions,
)


def test_topics_and_their_partitions() -> None:
    assert topics_and_partitions([]) == {}
    assert topics_and_partitions(["orders"]) == {"orders": None}
    assert topics_and_partitions(["orders:5,0-2,1", "a:7"]) == {"orders": [0, 1, 2, 5], "a": [7]}
    assert topics_and_partitions(["orders:1", "orders:0"]) == {"orders": [0, 1]}
    assert topics_and_partitions(["orders:1", "orders"]) == {"orders": None}


@pytest.mark.parametrize("text", ["", ":1", "t:", "t:x", "t:-1", "t:3-1", "t:1,", "t:1-2-3", "t:0-999999999", "t:²"])
def test_what_is_no_topic_or_partition(text: str) -> None:
    with pytest.raises(UsageError, match="--topic"):
        topics_and_partitions([text])


def test_a_move_goes_no_further_than_the_log() -> None:
    places = [("t", 0), ("t", 1), ("t", 2)]
    logs = dict.fromkeys(places, Offsets(10, 20))
    changes = plan(places, dict(zip(places, (5, 15, 25), strict=True)), {("t", 1): 12}, logs)
    assert changes == [
        OffsetChange("t", 0, None, 10, "5 is below the log's start"),
        OffsetChange("t", 1, 12, 15),
        OffsetChange("t", 2, None, 20, "25 is above the log's end"),
    ]
    assert [change.difference for change in changes] == [None, 3, None]
    assert changes_table(changes).rows[1] == ["t", "1", "12", "15", "+3", ""]
    assert [column.title for column in changes_table(changes[1:2]).columns] == [
        "Topic",
        "Partition",
        "Committed",
        "New",
        "Change",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("t,0,5\nt,1,6\n", {("t", 0): 5, ("t", 1): 6}),
        ("topic,partition,offset\n t , 0 , 5\n\n", {("t", 0): 5}),
        ('\ufeff"t,x",0,5', {("t,x", 0): 5}),
        ("g,t,0,5\nother,t,0,7\n", {("t", 0): 5}),
        ("group,topic,partition,offset\ng,t,0,5\n", {("t", 0): 5}),
        ('[{"topic": "t", "partition": 0, "offset": 5}]', {("t", 0): 5}),
        ('{"group": "x", "offsets": [{"topic": "t", "partition": 0, "offset": 5}]}', {("t", 0): 5}),
        (
            '[{"group": "x", "topic": "t", "partition": 0, "offset": 5},'
            ' {"group": "g", "topic": "t", "partition": 0, "offset": 6}]',
            {("t", 0): 6},
        ),
    ],
)
def test_files_of_offsets(tmp_path: Path, text: str, found: object) -> None:
    path = tmp_path / "offsets"
    path.write_text(text, encoding="utf-8")
    assert read_offsets(str(path), "g") == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no offsets for group g"),
        ("x,t,0,1", "has no offsets for group g"),
        ("t,0", "line 1 has 2 fields"),
        ("t,0,5\nt,zero,5", "line 2: topic 't', partition 'zero' and offset '5' are not all valid"),
        ("t,0,-5", "line 1"),
        ("t,0,5\nt,0,6", "line 2: t-0 occurs twice"),
        ("[1]", "expected CSV"),
        ("{}", "expected CSV"),
        ("[{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('[{"topic": "t", "partition": true, "offset": 5}]', "item 1"),
        ('[{"topic": "t", "partition": 0, "offset": null}]', "item 1"),
        ("t,0," + "9" * 30, "line 1"),
    ],
)
def test_files_that_say_nothing(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "offsets"
    path.write_text(text)
    with pytest.raises(CommandError, match="offsets") as raised:
        read_offsets(str(path), "g")
    assert reason in str(raised.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read: No such file"):
        read_offsets(str(tmp_path / "none"), "g")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CommandError, match="not UTF-8 text"):
        read_offsets(str(tmp_path / "bytes"), "g")


def test_what_json_prints_is_what_a_file_may_say(tmp_path: Path) -> None:
    import json

    changes = [OffsetChange("t", 0, 3, 5), OffsetChange("u", 1, None, 7, "why")]
    path = tmp_path / "offsets"
    path.write_text(json.dumps({"group": "g", "executed": False, "offsets": changes_json(changes)}))
    assert read_offsets(str(path), "g") == {("t", 0): 5, ("u", 1): 7}


def test_there_is_one_way_to_say_where() -> None:
    ResetTarget(False, False, None, 0, None, None).check()
    ResetTarget(False, False, None, None, 0, None).check()
    for wrong in (ResetTarget(False, False, None, None, None, None), ResetTarget(True, False, None, 0, None, None)):
        with pytest.raises(UsageError, match="exactly one target"):
            wrong.check()


def test_partitions_that_a_plan_leaves_out_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    there = [(topic, partition) for topic in ("orders", "a") for partition in (2, 1, 0)]
    others = omitted_partitions([("orders", 1), ("a", 0), ("a", 1), ("a", 2)], there)
    assert others == [("orders", 0), ("orders", 2)]
    assert omitted_partitions(there, there) == []
    report_omitted_partitions(others, "billing", "add --topic orders to set them, too")
    assert capsys.readouterr().err == (
        "Left out: 2 partitions without a committed offset of group billing (partitions 0,2 of orders);"
        " add --topic orders to set them, too.\n"
    )


def test_a_file_that_has_nothing_of_the_topics_that_are_named() -> None:
    given = {("t", 0): 5, ("t", 1): 6}
    # No broker is asked for what the file names.
    assert partitions_to_reset(None, "g", {"t": [1]}, given, {}) == [("t", 1)]  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="the file has no offsets for u, v: leave out --topic"):
        partitions_to_reset(None, "g", {"u": None, "v": [0]}, given, {})  # type: ignore[arg-type]
