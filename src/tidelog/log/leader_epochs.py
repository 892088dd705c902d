"""Which leader epoch wrote which offsets: the cache behind OffsetsForLeaderEpoch and truncation (KIP-101, KIP-279).
Pure.
"""

from bisect import bisect_right
from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEnd(NamedTuple):
    """The largest epoch known that is not above the one asked for, and the exclusive end of its offsets; -1, -1:
    unknown.
    """

    leader_epoch: int
    end_offset: int


class LeaderEpochs:
    """(epoch, first offset) pairs, both growing. `dirty` until the owner has written them down."""

    __slots__ = ("_epochs", "_starts", "dirty")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        """`entries` come from a checkpoint: those that are not in order are settled as `assign` does."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.dirty = False
        for epoch, start in entries or ():
            self.assign(epoch, start)
        self.dirty = False

    @property
    def latest(self) -> int:
        """The newest epoch, -1 when there is none."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` writes from `start_offset` on. Older entries that contradict it go."""
        if epoch < 0 or (self._epochs and self._epochs[-1] == epoch and self._starts[-1] <= start_offset):
            return
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.dirty = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Where `epoch` ended, for a log that ends at `log_end_offset`.

        An epoch above all known ones is unknown. One below them all ends where the first known one starts.
        """
        if epoch == UNDEFINED_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == self._epochs[-1]:
            return EpochEnd(epoch, log_end_offset)
        after = bisect_right(self._epochs, epoch)
        if not after:
            return EpochEnd(epoch, self._starts[0])
        return EpochEnd(self._epochs[after - 1], self._starts[after])

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 when that is not known."""
        after = bisect_right(self._starts, offset)
        return self._epochs[after - 1] if after else UNDEFINED_EPOCH

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now starts here: the epoch that holds this offset starts here too, older ones go."""
        after = bisect_right(self._starts, start_offset)
        if after and (after > 1 or self._starts[0] < start_offset):
            del self._epochs[: after - 1], self._starts[: after - 1]
            self._starts[0] = start_offset
            self.dirty = True

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends here (exclusive): epochs that start at or after it go."""
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            self.dirty = True
