"""Java's hash of strings, which Kafka uses to place groups on partitions and to break ties in votes."""

import sys

_MASK = 0xFFFFFFFF
_NATIVE_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def string_hash(text: str) -> int:
    """Return Java's `String.hashCode`: computed from UTF-16 code units, a signed 32-bit number."""
    value = 0
    for unit in memoryview(text.encode(_NATIVE_UTF16, "surrogatepass")).cast("H"):
        value = (31 * value + unit) & _MASK
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of(group_id: str, count: int) -> int:
    """Return which of the `count` partitions of `__consumer_offsets` stores the group. Kafka computes the same one."""
    magnitude = abs(string_hash(group_id))
    return magnitude % count if magnitude < 1 << 31 else 0


def hash_map_bucket(text: str) -> int:
    """Return the bucket of a string in a Java hash map of the initial size, which has up to 12 entries. Java iterates
    over the entries in the order of their buckets.
    """
    value = string_hash(text) & _MASK
    return (value ^ value >> 16) & 15
