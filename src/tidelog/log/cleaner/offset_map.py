"""Map each key to its last offset, for the part of a log that one pass reads. The memory is bounded. Pure."""

from hashlib import blake2b

DIGEST_BYTES = 16
"""Keys of this length (in bytes) or more are stored as digests of this length. If two keys had the same digest, a
record would be lost. The probability for a pair of keys is 2^-128."""
ENTRY_BYTES = 192
"""Upper bound on the memory of an entry, in bytes: a key or digest, the offset, and the entry's share of the old and
the new hash table, which exist together while the map grows."""


class OffsetMap:
    """The last offset of each record key, for at most `keys_max` keys. A key of `offsets` is a short record key, or
    the digest of a long one.
    """

    __slots__ = ("keys_max", "latest_offset", "offsets")

    def __init__(self, bytes_max: int, load_factor: float) -> None:
        used_share = min(load_factor, 1.0) if load_factor > 0 else 0.0  # 0 for NaN, which Kafka accepts as a number
        self.keys_max = max(int(bytes_max * used_share) // ENTRY_BYTES, 1)
        self.offsets: dict[bytes, int] = {}
        self.latest_offset = -1
        """The last offset that was read, even if its record had no key."""

    def put(self, key: bytes, offset: int) -> bool:
        """Store `offset` for `key`. The offset must be above all offsets of earlier calls. Returns False, without a
        change, if the map is full and does not contain the key.
        """
        stored_key = key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
        offsets = self.offsets
        if len(offsets) >= self.keys_max and stored_key not in offsets:
            return False
        offsets[stored_key] = offset
        self.latest_offset = offset
        return True

    def last_offset_of(self, key: bytes) -> int:
        """Return the last offset of a key; -1 if the key is not in the map."""
        stored_key = key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
        return self.offsets.get(stored_key, -1)

    def mark_covered(self, offset: int) -> None:
        """Mark all records up to `offset` as read, including records without keys."""
        self.latest_offset = max(self.latest_offset, offset)
