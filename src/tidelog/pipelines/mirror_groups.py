"""Move the committed offsets of consumer groups: translate them, and commit them in the target cluster of a mirror.

A group is moved only while it has no members in the target cluster, and its offsets there only increase. So if a mirror
still runs after consumers have changed to the target cluster, it does not reset their offsets to earlier ones.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tidelog.model.ids import TopicPartition
from tidelog.pipelines.declarations import TemporaryError
from tidelog.pipelines.mirror_cluster import MirrorCluster
from tidelog.pipelines.mirror_offsets import PartitionOffsets
from tidelog.pipelines.mirror_store import MirrorStore

logger = logging.getLogger("tidelog.pipelines")

WITHOUT_MEMBERS = ("", "Empty", "Dead")
"""States of a group without members in the target. Only the offsets of such a group are set. The empty text means that
the group does not exist in the target, or that the target's broker is old and sends no state. An old broker itself
refuses a commit while the group has members."""
SHARE = "Share"
"""Type of groups that have no committed offsets (KIP-932)."""

STOP_MAX_S = 20.0
"""When a mirror stops, it waits at most this number of seconds for the last move of its groups."""

MOVED, UNCHANGED, WAITING, ACTIVE, REFUSED = "moved", "unchanged", "waiting", "active", "refused"


class MovedOffset(NamedTuple):
    """The result for one committed offset of a group."""

    group: str
    partition: TopicPartition
    """The partition in the source cluster."""
    source_offset: int
    target_offset: int | None
    """The translated offset; None if it is not known yet."""
    outcome: str
    """`moved`: committed in the target. `unchanged`: the target has this offset or a later one. `waiting`: records
    before the offset are not mirrored yet. `active`: the group has members in the target. `refused`: the target did
    not accept the commit."""


class MirrorGroups:
    """Moves groups. It must be used by one thread only, and needs clients of its own."""

    def __init__(
        self,
        source: MirrorCluster,
        target: MirrorCluster,
        store: MirrorStore,
        matching: Callable[[list[str]], set[str]],
        prefix: str,
    ) -> None:
        """`matching` returns the names of the groups to move. Another thread adds offsets to the store."""
        self._source = source
        self._target = target
        self._store = store
        self._matching = matching
        self._prefix = prefix

    def move(self, topics: Mapping[str, int]) -> list[MovedOffset]:
        """Move every committed offset of the mirrored `topics` that can be moved now."""
        listed = [group for group in self._source.client.list_groups().groups if group.type != SHARE]
        names = sorted(self._matching([group.group_id for group in listed]))
        committed_by_group = self._source.client.committed_offsets(names) if names else {}
        states = {group.group_id: group.state for group in self._target.client.list_groups().groups}
        present_by_group = self._target.client.committed_offsets(names) if names else {}
        results: list[MovedOffset] = []
        for group, committed in committed_by_group.items():
            if not isinstance(committed, dict):
                logger.warning("mirror_group_failed group=%s reason=%s", group, committed)
                continue
            wanted = {tp: at for tp, at in committed.items() if tp.topic in topics and isinstance(at, int)}
            present = present_by_group.get(group)
            results += self._move_group(
                group, wanted, present if isinstance(present, dict) else {}, states.get(group, "")
            )
        return results

    def _move_group(
        self, group: str, wanted: Mapping[TopicPartition, int], present: Mapping[TopicPartition, object], state: str
    ) -> Iterator[MovedOffset]:
        commits: dict[TopicPartition, MovedOffset] = {}
        for tp, offset in wanted.items():
            translated = self._translate(tp, offset)
            target_tp = TopicPartition(self._prefix + tp.topic, tp.partition)
            present_offset = present.get(target_tp)
            result = MovedOffset(group, tp, offset, translated, UNCHANGED)
            if translated is None:
                yield result._replace(outcome=WAITING)
            elif isinstance(present_offset, int) and present_offset >= translated:
                yield result
            elif state not in WITHOUT_MEMBERS:
                yield result._replace(outcome=ACTIVE)
            else:
                commits[target_tp] = result._replace(outcome=MOVED)
        if not commits:
            return
        offsets = {tp: result.target_offset for tp, result in commits.items() if result.target_offset is not None}
        for tp, answer in self._target.client.commit(group, offsets).items():
            if isinstance(answer, int):
                yield commits[tp]
            else:
                logger.warning("mirror_group_failed group=%s partition=%s reason=%s", group, tp, answer)
                yield commits[tp]._replace(outcome=REFUSED)

    def _translate(self, tp: TopicPartition, offset: int) -> int | None:
        """Return the offset in the target; None if a record before `offset` is not mirrored yet."""
        with self._store.lock:
            offsets = self._store.offsets.get(tp, PartitionOffsets())
            mirrored_end = offsets.source_end
            translated = offsets.translate(offset)
        if mirrored_end is not None and offset <= mirrored_end:
            return translated
        begin = max(self._source.starts([tp])[tp], mirrored_end or 0)
        if begin < offset and (self._source.ends([tp])[tp] < offset or self._source.has_records(tp, begin, offset)):
            return None
        if translated is None:
            # Nothing is mirrored yet, so the group begins at the start of the target's partition. The end of this
            # partition would be wrong: the first micro-batch may have written records whose offsets are not stored yet.
            target_tp = TopicPartition(self._prefix + tp.topic, tp.partition)
            translated = self._target.starts([target_tp])[target_tp]
        return translated


class GroupMover:
    """Moves groups again and again, in a thread of its own."""

    def __init__(self, move: Callable[[], None], every_s: float, at_end: Callable[[], None]) -> None:
        """The thread calls `move`, and `at_end` as its last step."""
        self._move = move
        self._every_s = every_s
        self._at_end = at_end
        self._stop = threading.Event()
        self._moves_at_end = False
        self._error: Exception | None = None
        """The error of the last move, the one that `stop` has requested."""
        self._thread = threading.Thread(target=self._run, name="mirror-groups", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, move: bool, timeout_s: float = STOP_MAX_S) -> None:
        """Make the thread end. With `move`, the thread first moves the groups a last time. Wait up to `timeout_s`.

        Raises the error of the last move. If the thread has not ended in time, raises TemporaryError; the thread then
        ends after the move that it has begun, or with the process.
        """
        self._moves_at_end = move
        self._stop.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._moves_at_end = False  # the current move continues, but no other move begins
            raise TemporaryError(
                f"a move of the groups' offsets has not ended within {timeout_s:g} s, so offsets that groups committed"
                " after the previous move may be missing in the target: run the mirror again before consumers change to"
                " the target"
            )
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                try:
                    self._move()
                except Exception:  # the next attempt may succeed
                    logger.warning("mirror_groups_failed the offsets of groups were not moved", exc_info=True)
            if self._moves_at_end:
                self._move()
        except Exception as error:  # `stop` raises it again
            self._error = error
        finally:
            self._at_end()
