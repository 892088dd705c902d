"""Key -> the last offset that has it, for the stretch of a log that one pass looks at; bounded in memory. Pure."""

from hashlib import blake2b

DIGEST_BYTES = 16
"""A longer key is kept as its digest: two keys with one digest would lose a record, at odds of 2^-128."""
ENTRY_BYTES = 192
"""What an entry costs at most: a key or digest, the offset, and its share of two tables while it moves to a larger."""


class OffsetMap:
    """At most `keys_max` keys. `offsets` is for those who have made the key with `short_key`."""

    __slots__ = ("keys_max", "latest_offset", "offsets")

    def __init__(self, bytes_max: int, load_factor: float) -> None:
        share = min(load_factor, 1.0) if load_factor > 0 else 0.0  # NaN, which Kafka takes for a number, is none
        self.keys_max = max(int(bytes_max * share) // ENTRY_BYTES, 1)
        self.offsets: dict[bytes, int] = {}
        self.latest_offset = -1
        """The last offset that has been looked at, also when it had no key."""

    def put(self, key: bytes, offset: int) -> bool:
        """Remember `offset`, later than all before it, for `key`; False when the map is full, and nothing changed."""
        short = key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
        offsets = self.offsets
        if len(offsets) >= self.keys_max and short not in offsets:
            return False
        offsets[short] = offset
        self.latest_offset = offset
        return True

    def last_offset_of(self, key: bytes) -> int:
        """-1 for a key that has not been seen."""
        short = key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
        return self.offsets.get(short, -1)

    def looked_at(self, offset: int) -> None:
        """Everything up to `offset` is in the map."""
        self.latest_offset = max(self.latest_offset, offset)
