"""Checkpoint files: Kafka's text formats, and errors with their position."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.log.checkpoints import (
    CheckpointText,
    OffsetsCopy,
    format_epochs,
    format_partition_metadata,
    format_properties,
    overwrite,
    parse_epochs,
    parse_offsets,
    parse_partition_metadata,
    read_offsets,
    read_properties,
)
from tidelog.log.errors import CorruptLog
from tidelog.model.ids import TopicPartition
from tidelog.simulation.disk import SimDisk

PATH = "/data/log-start-offset-checkpoint"
OFFSETS = {TopicPartition("orders", 0): 12, TopicPartition("a.b-c_d", 11): 9_000_000_000}


def test_offsets() -> None:
    data = b"0\n2\norders 0 12\na.b-c_d 11 9000000000\n"
    assert CheckpointText().format(OFFSETS, None) == data
    assert parse_offsets(data, "/p") == OFFSETS
    assert parse_offsets(b"", "/p") == {}
    assert parse_offsets(b"0\n0\n", "/p") == {}


def test_epochs() -> None:
    assert format_epochs([(0, 0), (2, 640)]) == b"0\n2\n0 0\n2 640\n"
    assert parse_epochs(b"0\n2\n0 0\n2 640\n", "/p") == [(0, 0), (2, 640)]


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"1\n0\n", 0),
        (b"0\n2\norders 0 12\n", 0),
        (b"0\n1\norders 0\n", 4),
        (b"0\n2\norders 0 12\norders x 12\n", 16),
        (b"0\n1\norders 0 1_x\n", 4),
        (b"0\n1\norders 0 999999999999999999999\n", 4),
        (b"0\nmany\n", 2),
        (b"0", 2),
        (b"0\n1\n\xff\xfe 0 1\n", 4),
        (b"\0\0\0\0", 0),
    ],
)
def test_damage_is_named_with_its_position(data: bytes, position: int) -> None:
    with pytest.raises(CorruptLog) as found:
        parse_offsets(data, "/data/recovery-point-offset-checkpoint")
    assert (found.value.path, found.value.position) == ("/data/recovery-point-offset-checkpoint", position)


def test_partition_metadata() -> None:
    topic_id = bytes.fromhex("2f8fc5c88d1540fa68d52401d0d49abb")
    data = format_partition_metadata(topic_id)
    assert data == b"version: 0\ntopic_id: L4_FyI0VQPpo1SQB0NSauw"
    assert parse_partition_metadata(data, "/p") == topic_id
    for wrong in (b"", b"version: 1\ntopic_id: L4_FyI0VQPpo1SQB0NSauw", b"version: 0\ntopic_id: ???", b"version: 0"):
        with pytest.raises(CorruptLog):
            parse_partition_metadata(wrong, "/p")


def test_properties() -> None:
    kafka = b"#\n#Wed Aug 06 16:01:33 WIB 2025\ncluster.id=PCbusMznQZi20FQlE8ke6g\nnode.id=1\nversion=1\n"
    properties = {"cluster.id": "PCbusMznQZi20FQlE8ke6g", "node.id": "1", "version": "1"}
    assert read_properties(kafka, "/p") == properties
    assert read_properties(format_properties(properties), "/p") == properties
    assert read_properties(b"a\\:b = c\\\n  d\n", "/p") == {"a:b": "cd"}
    for wrong in (b"#\n\xff\n", b"a=\\u12\n"):
        with pytest.raises(CorruptLog, match="/p at 0: the properties cannot be read"):
            read_properties(wrong, "/p")


class CountedName(str):
    """A topic name that counts how often a line is formatted from it."""

    formatted = 0

    def __format__(self, specification: str) -> str:
        CountedName.formatted += 1
        return str(self)


def copies_of(versions: list[dict[TopicPartition, int]]) -> list[OffsetsCopy]:
    """Return a chain of copies, each with the keys that differ from the one before it."""
    marks = [object() for _ in range(len(versions) + 1)]
    return [
        OffsetsCopy(offsets, marks[i + 1], marks[i], list({**older, **offsets}))
        for i, (older, offsets) in enumerate(zip([{}, *versions], versions, strict=False))
    ]


KEYS = [TopicPartition("orders", index) for index in range(4)]


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3)), min_size=1, max_size=8))
def test_a_text_that_formats_only_changes_has_the_entries_of_a_new_one(
    versions: list[dict[TopicPartition, int]],
) -> None:
    text, last = CheckpointText(), OffsetsCopy({}, None, None, ())
    for copy in copies_of(versions):
        changed = copy.changes_since(last)
        assert changed is None or set(changed) == {key for key in KEYS if copy.get(key) != last.get(key)}
        assert parse_offsets(text.format(copy, changed), "/p") == copy
        last = copy


def test_a_copy_knows_its_changes_only_since_the_copy_directly_before_it() -> None:
    first, second, third = copies_of([{KEYS[0]: 1}, {KEYS[0]: 2}, {KEYS[0]: 2, KEYS[1]: 5}])
    assert second.changes_since(first) == [KEYS[0]]
    assert third.changes_since(second) == [KEYS[1]]
    assert third.changes_since(first) is None  # the write of the second may have failed
    assert third.changes_since(dict(second)) is None
    assert first.changes_since(None) is None


def test_only_changed_entries_are_formatted() -> None:
    offsets = {TopicPartition(CountedName("orders"), index): index for index in range(1000)}
    changed_key = TopicPartition(CountedName("orders"), 500)
    first, second = copies_of([offsets, {**offsets, changed_key: 7}])
    text = CheckpointText()
    text.format(first, None)
    CountedName.formatted = 0
    data = text.format(second, second.changes_since(first))
    assert CountedName.formatted == 1
    assert data == CheckpointText().format(second, None)


@pytest.mark.parametrize("entries", [1, 60])
def test_a_crash_while_a_checkpoint_is_overwritten_leaves_no_wrong_offset(entries: int) -> None:
    """The file has its old or its new content, or counts as damaged."""
    disk = SimDisk(rng=random.Random(1))
    disk.make_dirs("/data")
    old = {TopicPartition("orders", index): 7 + 3 * index for index in range(entries)}
    new = {TopicPartition("orders", index): 8 + 97 * index for index in range(entries)}
    disk.write_atomic(PATH, CheckpointText().format(old, None))
    rng = random.Random(1)
    survivors: list[SimDisk] = []
    disk.on_operation = lambda _operation, _path: survivors.extend(disk.power_cut(rng) for _ in range(20))
    overwrite(disk, PATH, CheckpointText().format(new, None))
    disk.on_operation = None
    assert read_offsets(disk, PATH) == read_offsets(disk.power_cut(rng), PATH) == new
    found = []
    for survivor in survivors:
        try:
            found.append(read_offsets(survivor, PATH))
            assert found[-1] in (old, new)
        except CorruptLog:
            found.append(None)
    assert all(content in found for content in (old, None, new))


def test_a_checkpoint_can_be_overwritten_if_the_disk_is_full() -> None:
    disk = SimDisk(rng=random.Random(1))
    disk.make_dirs("/data")
    disk.write_atomic(PATH, b"0\n1\norders 0 12\n")
    disk.limit_space(disk.medium.used_bytes())
    overwrite(disk, PATH, b"0\n1\norders 0 34\n")
    assert disk.read(PATH) == b"0\n1\norders 0 34\n"
    overwrite(disk, PATH, b"0\n1\norders 0 5\n")
    assert disk.read(PATH) == b"0\n1\norders 0 5\n"
