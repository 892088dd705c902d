"""The lines of the table of facts, and names."""

import pytest

from tidelog.wire.fields import NEWEST, NO_VERSIONS, Versions, field_from_line, snake_case, versions_from_text
from tidelog.wire.primitives import NO_UUID


@pytest.mark.parametrize(
    ("text", "versions"),
    [("none", NO_VERSIONS), ("3", Versions(3, 3)), ("3+", Versions(3, NEWEST)), ("3-7", Versions(3, 7))],
)
def test_versions(text: str, versions: Versions) -> None:
    assert versions_from_text(text) == versions
    assert str(versions) == text


def test_versions_contain() -> None:
    assert 3 in Versions(3, 7)
    assert 7 in Versions(3, 7)
    assert 8 not in Versions(3, 7)
    assert 0 not in NO_VERSIONS


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("TopicId", "topic_id"),
        ("ISR", "isr"),
        ("KRaftVersion", "k_raft_version"),
        ("V3AndBelowTopics", "v3_and_below_topics"),
        ("LastKnownElr", "last_known_elr"),
        ("name", "name"),
    ],
)
def test_snake_case(name: str, attribute: str) -> None:
    assert snake_case(name) == attribute


def test_field_with_every_fact() -> None:
    field = field_from_line("  HighWatermark int64 18+ tag=1 default=9223372036854775807 ignorable")
    assert (field.name, field.attribute, field.type, field.is_array) == (
        "HighWatermark",
        "high_watermark",
        "int64",
        False,
    )
    assert (field.versions, field.tag, field.default, field.ignorable) == (Versions(18, NEWEST), 1, 2**63 - 1, True)
    assert field.nullable == NO_VERSIONS
    assert not field.rigid


@pytest.mark.parametrize(
    ("line", "default"),
    [
        ("A bool 0+", False),
        ("A bool 0+ default=true", True),
        ("A int32 0+", 0),
        ("A int32 0+ default=-1", -1),
        ("A float64 0+", 0.0),
        ("A string 0+", ""),
        ("A string 0+ default=x", "x"),
        ("A string 0+ nullable=0+ default=null", None),
        ("A string 0+ nullable=0+", ""),
        ("A bytes 0+", b""),
        ("A uuid 0+", NO_UUID),
        ("A records 0+ nullable=0+", None),
        ("A []int32 0+ nullable=0+ default=null", None),
    ],
)
def test_defaults(line: str, default: object) -> None:
    assert field_from_line(line).default == default


def test_array_and_struct_defaults_are_not_null_unless_said() -> None:
    assert field_from_line("A []int32 0+ nullable=0+").default is not None
    assert field_from_line("A Cursor 0+ nullable=0+").default is not None
    assert field_from_line("A Cursor 0+ nullable=0+ default=null").default is None


def test_optional_struct() -> None:
    assert field_from_line("Leader LeaderIdAndEpoch 10+ tag=0").is_optional_struct
    assert not field_from_line("Leader LeaderIdAndEpoch 10+").is_optional_struct
    assert not field_from_line("Leaders []LeaderIdAndEpoch 10+ tag=0").is_optional_struct
    assert not field_from_line("Leader LeaderIdAndEpoch 10+ nullable=10+ tag=0 default=null").is_optional_struct


def test_unknown_fact_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown options"):
        field_from_line("A int32 0+ mapKey")
