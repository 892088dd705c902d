import pytest

from tidelog.coordinator.group.hashing import hash_map_bucket, partition_of, string_hash


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("é", 233),
        ("\U0001f600", 1772899),  # two UTF-16 code units
        ("polygenelubricants", -(2**31)),
    ],
)
def test_hash_is_that_of_java(text: str, hashed: int) -> None:
    assert string_hash(text) == hashed


@pytest.mark.parametrize(
    ("group", "partition"),
    [("", 0), ("simple", 26), ("ng2", 3), ("ng8", 9), ("ng9", 10), ("ng10", 10), ("s", 15), ("retg", 34), ("zz", 4)],
)
def test_partition_is_where_kafka_put_the_group(group: str, partition: int) -> None:
    """Seen in the directory of a Kafka 4.3.1 with 50 offsets partitions."""
    assert partition_of(group, 50) == partition


def test_the_one_hash_without_a_magnitude_goes_to_partition_0() -> None:
    assert partition_of("polygenelubricants", 50) == 0


def test_place_in_a_hash_map() -> None:
    assert sorted(["range", "rr", "sticky"], key=hash_map_bucket)[0] == "rr"
