"""Java's hash of strings. Kafka uses it to choose a group's partition and to break ties in votes."""

import sys

_MASK = 0xFFFFFFFF
_NATIVE_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def string_hash(text: str) -> int:
    """Return Java's `String.hashCode`. It is a signed 32-bit number, computed from UTF-16 code units."""
    value = 0
    for unit in memoryview(text.encode(_NATIVE_UTF16, "surrogatepass")).cast("H"):
        value = (31 * value + unit) & _MASK
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of(group_id: str, count: int) -> int:
    """Return which partition of `__consumer_offsets` stores the group, as Kafka computes it. `count` is the number of
    that topic's partitions.
    """
    magnitude = abs(string_hash(group_id))
    return magnitude % count if magnitude < 1 << 31 else 0  # Kafka uses 0, because Java has no int 2**31


def hash_map_bucket(text: str) -> int:
    """Return the index of a string's bucket in a Java hash map of the initial size: 16 buckets, for at most 12
    entries. Java iterates over the entries in the order of their buckets.
    """
    value = string_hash(text) & _MASK
    return (value ^ value >> 16) & 15
