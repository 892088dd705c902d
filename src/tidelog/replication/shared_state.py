"""State that all partitions of a broker share, and the parts of the broker that a partition notifies."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tidelog.log.validation import ExaminationResult, NotInline, examine_inline
from tidelog.replication.append_queue import QueuedBytes
from tidelog.replication.full_directories import FullDirectories
from tidelog.replication.replica import AskForIsr, CutTo, FetchFrom
from tidelog.runtime.turns import NoTurn, Turns

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.replication.partition import Partition
    from tidelog.wire.batches import BatchHeader


class HighWatermarkWatcher(Protocol):
    """A waiting fetch request."""

    def moved(self, partition: "Partition") -> None:
        """Called when the high watermark has moved, when the leader epoch has changed, or when this broker does not
        serve the partition any more.

        A follower's fetch (`SharedByPartitions.end_watchers`) is also notified when the log has a new end or start, or
        when the ISR has changed.

        The call may be made during an append, so it must only record the event.
        """


class FlushRequests(Protocol):
    def request(self, partition: "Partition") -> None:
        """Sync the partition's log soon, then call `Partition.flushed`."""

    dirty: "dict[Partition, None]"
    """Partitions with appends since their last complete flush. `Partition.in_dirty_set` is True for these."""


PeerWork = CutTo | AskForIsr | FetchFrom
"""Effects of `Replica.step` that need a thread or another broker. A partition passes them to `on_peer_work`."""


class SharedByPartitions:
    """State that all partitions of a broker share."""

    __slots__ = (
        "check_lease",
        "end_watchers",
        "failed_topics",
        "full_directories",
        "on_peer_work",
        "on_refused_append",
        "queued_bytes",
        "role_watchers",
        "stop_fetching",
        "turns",
        "warned_too_large",
    )

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.full_directories = FullDirectories()
        self.queued_bytes = QueuedBytes()
        self.failed_topics: dict[str, None] = {}
        """Topics with a partition whose log has gone offline on this broker since the start."""
        self.warned_too_large: dict[str, None] = {}
        """Topics for which a warning about an oversized batch was written since their settings last changed."""
        self.check_lease: Callable[[], None] = lambda: None
        """Called before a leader answers that an offset is above the end of its log. If the lease of this broker has
        ended, the call makes this broker stop leading the partitions that another broker may lead now; see
        `lease_guard.py`."""
        self.on_peer_work: Callable[[Partition, PeerWork], None] | None = None
        """Called with the effects of a replica that need a thread or another broker. The call must not wait."""
        self.on_refused_append: Callable[[Partition, Exception], None] | None = None
        """Called when the log of a partition that this broker leads had no space, or no file descriptor, for a batch.
        """
        self.role_watchers: dict[str, Callable[[Partition], None]] = {}
        """By topic; see `Partitions.watch_roles`."""
        self.stop_fetching: Callable[[Partition], None] | None = None
        """Called when the leader epoch of a partition has changed, and when a partition was deleted or has gone
        offline. The call makes this broker stop fetching the partition."""
        self.end_watchers: dict[HighWatermarkWatcher, None] = {}
        """Waiting fetches of followers. `Partition.notify_followers` calls `moved` for all of them."""

    def examine_in_turn(
        self, batch: memoryview, header: "BatchHeader", config: "LogConfig", now_ms: int
    ) -> ExaminationResult:
        """Call `examine_inline`. If the time for such work in this turn of the loop is used up, raise NotInline
        instead.
        """
        try:
            return self.turns.run_inline(examine_inline, batch, header, config, now_ms)
        except NoTurn:
            raise NotInline from None
