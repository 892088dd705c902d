"""The leader epochs of a log and their first offsets, used for OffsetsForLeaderEpoch and truncation (KIP-101,
KIP-279). Pure.
"""

from bisect import bisect_right
from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEnd(NamedTuple):
    """The largest known epoch that is not above the requested one, and its exclusive end offset; (-1, -1) if the
    requested epoch is above all known epochs.

    If the requested epoch is below all known epochs, `leader_epoch` is the requested epoch.
    """

    leader_epoch: int
    end_offset: int


class LeaderEpochs:
    """(epoch, first offset) pairs, both ascending. Each change of the pairs sets `dirty`. The owner clears `dirty` when
    it writes the pairs to the checkpoint.
    """

    __slots__ = ("_epochs", "_starts", "dirty")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        """`entries` come from a checkpoint. An entry removes entries before it that contradict it, as in `assign`."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.dirty = False
        for epoch, start in entries or ():
            self.assign(epoch, start)
        self.dirty = False

    @property
    def latest(self) -> int:
        """The newest epoch; -1 if the log has no epochs."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def precedes_all(self, epoch: int) -> bool:
        """Return whether `epoch` is older than every known epoch. If it is, nothing is known about its records."""
        return not self._epochs or epoch < self._epochs[0]

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Begin `epoch` at `start_offset`. Existing entries that contradict this are removed.

        The call is ignored if `epoch` is negative, or is the latest epoch and began at or before `start_offset`.
        """
        if epoch < 0 or (self._epochs and self._epochs[-1] == epoch and self._starts[-1] <= start_offset):
            return
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.dirty = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Return the end of `epoch`, in a log that ends at `log_end_offset`.

        For an epoch above all known epochs, the result is (-1, -1). An epoch below all known epochs ends at the start
        of the oldest known epoch.
        """
        if epoch == UNDEFINED_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == self._epochs[-1]:
            return EpochEnd(epoch, log_end_offset)
        after = bisect_right(self._epochs, epoch)
        if not after:
            return EpochEnd(epoch, self._starts[0])
        return EpochEnd(self._epochs[after - 1], self._starts[after])

    def end_offset_at_leader(self, epoch: int, leader_epoch: int, epoch_start: int, log_end_offset: int) -> EpochEnd:
        """Return the end of `epoch` in the log of a leader. The leader's own epoch, `leader_epoch`, began at
        `epoch_start`, even if the log has no record of this epoch yet.
        """
        if epoch == leader_epoch:
            return EpochEnd(epoch, log_end_offset)
        if not self.latest < epoch < leader_epoch:
            return self.end_offset_for(epoch, log_end_offset)
        # The log has no record of `epoch`, and the records of the next known epoch, the leader's own, begin at
        # `epoch_start`.
        return EpochEnd(self.latest if self._epochs else epoch, epoch_start)

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that wrote `offset`; -1 if it is unknown."""
        after = bisect_right(self._starts, offset)
        return self._epochs[after - 1] if after else UNDEFINED_EPOCH

    def truncate_from_start(self, start_offset: int) -> None:
        """Move the start of the log to this offset: the epoch of the offset now starts there, and older epochs are
        removed.
        """
        after = bisect_right(self._starts, start_offset)
        if after and (after > 1 or self._starts[0] < start_offset):
            del self._epochs[: after - 1], self._starts[: after - 1]
            self._starts[0] = start_offset
            self.dirty = True

    def truncate_from_end(self, end_offset: int) -> None:
        """Move the end of the log to this offset (exclusive): epochs that start at or after it are removed."""
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            self.dirty = True
