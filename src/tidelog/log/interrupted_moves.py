"""At the start of a broker, find the moves between data directories that a crash interrupted near their end, and decide
which log is used. See `future_logs` for the steps of a move and for the mark `takes-over`.

    found                                    the log that is used
    a log and its marked copy                the old log; the copy if its mark says `final`
    only a marked copy, all directories work the copy: its old log was retired
    only a marked copy, a directory is       none, unless its mark says `final`: the old log may be in that directory,
    missing or does not work                 and may have records that the copy lacks
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.checkpoints import read_partition_metadata
from tidelog.log.errors import CorruptLog
from tidelog.log.file_kinds import DELETE_SUFFIX
from tidelog.log.future_logs import (
    FUTURE_SUFFIX,
    UnfinishedCopy,
    has_mark,
    is_final,
    remove_mark,
    rename_back,
    retire_log,
)

if TYPE_CHECKING:
    from tidelog.log.directory import DataDirectory
    from tidelog.model.ids import TopicPartition
    from tidelog.runtime.interfaces import Disk


class UnsettledMove(NamedTuple):
    """A move that a crash interrupted when both the log and its copy had the log's name."""

    partition: "TopicPartition"
    copy: "DataDirectory"
    old: "DataDirectory"
    discarded: "DataDirectory"
    """Either `copy` or `old`: the directory whose files of this partition are not used."""


class InterruptedMoves:
    """The interrupted moves of one broker. All methods block, and raise OSError."""

    def __init__(self, disk: "Disk") -> None:
        self._disk = disk
        self.unsettled: list[UnsettledMove] = []
        self.lone_copies: list[tuple[TopicPartition, DataDirectory]] = []
        """Copies with a mark, whose old log was not found or is retired."""
        self.unusable_copies: dict[TopicPartition, str] = {}
        """Copies that must not be used, with the reasons."""

    def choose(self, partition: "TopicPartition", holders: "Sequence[DataDirectory]") -> "DataDirectory | None":
        """Find out whether a move of the partition was interrupted. `holders` are the data directories that contain a
        log with the partition's name. Returns the one whose log must not be used, or None. Changes no file.
        """
        if len(holders) > 2:
            return None
        marked_holders = [d for d in holders if has_mark(self._disk, f"{d.path}/{partition}")]
        if len(marked_holders) != 1:
            return None
        copy = marked_holders[0]
        if len(holders) == 1:
            self.lone_copies.append((partition, copy))
            return None
        [old] = [d for d in holders if d is not copy]
        ids = [self._topic_id(d, partition) for d in (copy, old)]
        if None not in ids and ids[0] != ids[1]:
            self.lone_copies.append((partition, copy))
            return None  # the other log belongs to an older topic of the same name
        discarded = old if is_final(self._disk, f"{copy.path}/{partition}") else copy
        self.unsettled.append(UnsettledMove(partition, copy, old, discarded))
        return discarded

    def _topic_id(self, directory: "DataDirectory", partition: "TopicPartition") -> bytes | None:
        try:
            return read_partition_metadata(self._disk, f"{directory.path}/{partition}")
        except (OSError, CorruptLog):
            return None

    def put_aside(self, move: UnsettledMove) -> UnfinishedCopy | None:
        """Durably rename the log in `move.discarded`. If this log is the copy, return the copy: it will be removed, and
        the move begins again.
        """
        partition, copy, old, discarded = move
        if discarded is old:
            retire_log(self._disk, old.path, partition, self._unused(f"{old.path}/{partition}.", DELETE_SUFFIX))
            return None
        path = rename_back(self._disk, copy.path, partition, self._unused(f"{copy.path}/{partition}.", FUTURE_SUFFIX))
        return UnfinishedCopy(partition, copy, path)

    def _unused(self, start: str, end: str) -> bytes:
        """Return 16 bytes so that no file has the path `start` + the bytes in hexadecimal + `end`. Files of earlier
        paths may exist, since a power cut may have undone the removal of an earlier copy or log.
        """
        number = 0
        while self._disk.exists(f"{start}{number.to_bytes(16, 'big').hex()}{end}"):
            number += 1
        return number.to_bytes(16, "big")

    def settle_lone_copy(
        self, partition: "TopicPartition", copy: "DataDirectory", absent_paths: "Sequence[str]"
    ) -> None:
        """Durably remove the mark of a copy, since its old log is retired. But if data directories are absent, the old
        log may be in one of them. Then the mark stays, and the copy is not used unless its mark says `final`.
        """
        if not absent_paths:
            remove_mark(self._disk, copy.path, partition)
        elif not is_final(self._disk, f"{copy.path}/{partition}"):
            self.unusable_copies[partition] = (
                f"{copy.path}/{partition} is the copy of an interrupted move, and the log itself may be in "
                f"{', '.join(absent_paths)}, which cannot be used or is empty; if the disk of such a "
                "directory is lost, remove the directory from log.dirs"
            )
