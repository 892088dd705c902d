"""Java's hash of a string, by which Kafka places groups and breaks a tie of votes."""

import sys

_MASK = 0xFFFFFFFF
_NATIVE_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def string_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 code units, in signed 32 bits."""
    value = 0
    for unit in memoryview(text.encode(_NATIVE_UTF16, "surrogatepass")).cast("H"):
        value = (31 * value + unit) & _MASK
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of(group_id: str, count: int) -> int:
    """The partition of `__consumer_offsets` that has the group, of `count`; the same for every broker and for Kafka."""
    magnitude = abs(string_hash(group_id))
    return magnitude % count if magnitude < 1 << 31 else 0


def hash_map_place(text: str) -> int:
    """Where a Java hash map of its first size (up to 12 entries) puts a string: what comes first when it is walked."""
    value = string_hash(text) & _MASK
    return (value ^ value >> 16) & 15
