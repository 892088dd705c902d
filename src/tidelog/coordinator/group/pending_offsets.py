"""Offsets of open transactions (KIP-98). They take effect if their transaction is committed, but not if it is aborted.

Of the committed records with the same key, the last one in the log is valid, as in a compacted log. So a pending offset
is superseded if a record with the same key and a higher offset in the log is committed while the pending offset's own
transaction is still open.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from tidelog.wire.messages.group_records import OffsetCommitValue

K = TypeVar("K")
L = TypeVar("L")


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class PendingOffset:
    """One offset in an open transaction."""

    __slots__ = ("is_superseded", "record_offset", "value")

    def __init__(self, value: OffsetCommitValue, record_offset: int, *, is_superseded: bool) -> None:
        self.value = value
        self.record_offset = record_offset
        """The offset of its record in `__consumer_offsets`."""
        self.is_superseded = is_superseded
        """Whether a record with the same key and a higher offset in the log is committed already."""


class PendingOffsets:
    """The offsets of all open transactions in one partition of `__consumer_offsets`."""

    __slots__ = ("_by_group", "_by_key", "_by_producer")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetKey, PendingOffset]] = {}
        self._by_key: dict[OffsetKey, dict[int, PendingOffset]] = {}
        """The same offsets by key, and then by producer id."""
        self._by_group: dict[str, dict[OffsetKey, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def add(
        self, producer_id: int, key: OffsetKey, value: OffsetCommitValue, record_offset: int, *, is_superseded: bool
    ) -> None:
        pending = PendingOffset(value, record_offset, is_superseded=is_superseded)
        self._by_producer.setdefault(producer_id, {})[key] = pending
        self._by_key.setdefault(key, {})[producer_id] = pending
        self._by_group.setdefault(key.group, {})[key] = None

    def supersede(self, key: OffsetKey, record_offset: int | None = None) -> None:
        """A record with this key is committed: mark the key's pending offsets whose records precede the committed
        record in the log. `record_offset` is the offset of the committed record, or None if this record follows all of
        the key's pending offsets.
        """
        for pending in self._by_key.get(key, {}).values():
            if record_offset is None or pending.record_offset < record_offset:
                pending.is_superseded = True

    def remove(self, key: OffsetKey) -> None:
        """Drop the key's pending offsets from all transactions, because a record has deleted the key's offset."""
        for producer_id in list(self._by_key.get(key, ())):
            self._forget(producer_id, key)

    def end(self, producer_id: int) -> Iterator[tuple[OffsetKey, PendingOffset]]:
        """Remove and yield the offsets of a producer's transaction, in the order in which their keys were added."""
        for key, pending in list(self._by_producer.get(producer_id, {}).items()):
            self._forget(producer_id, key)
            yield key, pending

    def contains(self, key: OffsetKey) -> bool:
        return key in self._by_key

    def of_group(self, group: str) -> list[OffsetKey]:
        return list(self._by_group.get(group, ()))

    def has_group(self, group: str) -> bool:
        return group in self._by_group

    def _forget(self, producer_id: int, key: OffsetKey) -> None:
        _remove(self._by_producer, producer_id, key)
        _remove(self._by_key, key, producer_id)
        if key not in self._by_key:
            keys = self._by_group[key.group]
            del keys[key]
            if not keys:
                del self._by_group[key.group]


def _remove(table: dict[K, dict[L, PendingOffset]], outer: K, inner: L) -> None:
    entries = table[outer]
    del entries[inner]
    if not entries:
        del table[outer]
