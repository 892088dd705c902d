"""Replicas of this broker whose logs are offline or whose disk is full: report them to the controller, and fetch
damaged logs again from the leader.

A replica is reported while it is the leader of its partition or a member of the ISR or the ELR (eligible leader
replicas, KIP-966), so that the controller replaces it. When the replica is none of these and another broker leads the
partition, a damaged log is renamed, and deleted later. The replica then begins with an empty log and joins the ISR
again when it has all records. Two kinds of offline logs are not changed: logs in a data directory that is out of use,
and logs that cannot be opened because of a temporary error.

A damaged log is never renamed without a report. The leader may have proposed to add the replica to the ISR, and this
broker does not know that. The report increments the partition epoch, so the controller refuses the proposal. The
controller's answer to the report contains a position in the metadata journal. When this broker has applied the journal
up to this position, and the replica is still in neither the ISR nor the ELR, the log is renamed.

A replica whose disk is full is reported, too, if the ISR has enough other members and one of two conditions is true:
the replica leads the partition; or it is to lead the partition after its log has been cut, and there is no space for
the cut (see `cuts.py`). The controller removes the replica from the ISR. The replica joins the ISR again when it has
caught up with the new leader.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from tidelog.metadata.image import NO_LEADER
from tidelog.metadata.link import ReplicasOffline
from tidelog.metadata.offline_replicas import leads_or_may_lead
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.replication.full_directories import lacks_space
from tidelog.replication.isr import bounded_min_isr
from tidelog.runtime.cancelling import cancel_and_wait

if TYPE_CHECKING:
    from tidelog.metadata.link import ControllerLink
    from tidelog.metadata.records import PartitionState
    from tidelog.replication.partition import Partition
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.partitions")

REPLICAS_MAX: Final = 1000
"""Upper bound on the replicas of one report. The controller appends the changes of one report as one entry of the
journal."""
TIMEOUT_MS: Final = 10_000
"""Longest time that one report waits for the controller's answer, in milliseconds."""
SPACE_PAUSE_S: Final = 1.0
"""Time, in seconds, for which a leader with a full disk waits for space. After this time the leader is reported, and
another broker becomes the leader."""
PAUSE_S: Final = 1.0
"""Pause before the next report or the next replacement of a damaged log, in seconds."""


class OfflineReplicas:
    """Reports the offline replicas of one broker, and replaces their damaged logs."""

    def __init__(
        self,
        runtime: "Runtime",
        partitions: "Partitions",
        controller: "ControllerLink",
        broker_epoch: Callable[[], int],
    ) -> None:
        """`broker_epoch` returns the epoch of this broker's current registration."""
        self._tasks = runtime.tasks
        self._clock = runtime.clock
        self._partitions = partitions
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._failed: dict[Partition, None] = {}
        """Open partitions whose logs have failed."""
        self._full: dict[Partition, float] = {}
        """Partitions of two kinds: this broker leads the partition, and the disk had no space for the last batch; or
        this broker is to lead the partition after a cut, and the disk has no space for the cut. The values are the
        times of the first failures, in seconds of the monotonic clock."""
        self._reported: dict[tuple[TopicId, int], int] = {}
        """The partition epoch at the last report of each replica. If this epoch is unchanged after the report, the
        controller has found no other broker that can lead the partition. A second report in this epoch would not change
        this, so it is not sent."""
        self._in_report: dict[tuple[TopicId, int], None] = {}
        """The replicas of the report that is being sent."""
        self._answered: dict[tuple[TopicId, int], int] = {}
        """Replicas that were reported because of the present damage of their logs, and for which the controller has
        answered. The values are the journal positions in these answers."""
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def add(self, partition: "Partition") -> None:
        """Add an open partition whose log has failed."""
        if partition not in self._failed:
            # An earlier report was about an earlier log, or about a full disk.
            replica = TopicId(partition.topic_id), partition.index
            self._in_report.pop(replica, None)
            self._answered.pop(replica, None)
        self._failed[partition] = None
        self.check()

    def add_refused(self, partition: "Partition", error: Exception) -> None:
        """Remember a partition that this broker leads, if `error` says that the disk had no space for a batch."""
        if lacks_space(error) and partition not in self._full:
            self._full[partition] = self._clock.monotonic()
            self.check()

    def add_waiting(self, partition: "Partition") -> None:
        """Remember that this broker is to lead a partition whose log must be cut first, and that the disk has no space
        for this.
        """
        if partition not in self._full:
            self._full[partition] = self._clock.monotonic()
            self.check()

    def check(self) -> None:
        """Check the offline replicas after a change of the metadata or of a log."""
        has_offline = bool(self._failed or self._full or self._partitions.unopened)
        if not has_offline:
            self._reported.clear()
            self._answered.clear()
        if has_offline and self._task is None and not self._stopped:
            self._task = self._tasks.spawn(self._run(), name="offline-replicas")

    async def stop(self) -> None:
        self._stopped = True
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        try:
            await self._tasks.sleep(0)  # the other partitions of a failed directory are added in the same turn
            while not self._stopped:
                reported = dict(islice(self._replicas_to_report(), REPLICAS_MAX))
                damaged = next(self._replaceable(), None)
                if reported:
                    await self._report(reported)
                elif damaged is not None:
                    await self._partitions.reconciler.replace_log(damaged, self._may_be_replaced)
                elif not self._full:
                    return
                await self._tasks.sleep(PAUSE_S)
        finally:
            self._task = None

    async def _report(self, replicas: dict[tuple[TopicId, int], int]) -> None:
        """Report the keys of `replicas`. The values are the epochs of their partitions."""
        self._in_report = dict.fromkeys(replicas)
        request = ReplicasOffline(self._partitions.node_id, self._broker_epoch(), list(replicas), TIMEOUT_MS)
        answer = await self._controller.replicas_offline(request)
        if not answer.error:
            self._reported.update(replicas)
            self._answered.update(dict.fromkeys(self._in_report, answer.position))
        else:
            logger.warning(
                "offline replicas not reported, trying again reason=%s %s", answer.error.name, answer.message
            )

    def _offline(self) -> "Iterator[tuple[TopicId, TopicPartition, PartitionState]]":
        """Yield the offline replicas, with the newest states of their partitions."""
        partitions = self._partitions
        for partition in list(self._failed):
            if partition.deleted:
                del self._failed[partition]
        keys = [(partition.topic, partition.index) for partition in self._failed]
        for name, index in (*keys, *partitions.unopened):
            topic = partitions.topics.get(name)
            if topic is not None and index < len(topic.partitions):
                yield topic.topic_id, TopicPartition(name, index), topic.partitions[index]

    def _replicas_to_report(self) -> Iterator[tuple[tuple[TopicId, int], int]]:
        """Yield the replicas that must be reported, with the partition epochs."""
        for topic_id, key, state in self._offline():
            replica = topic_id, key.partition
            if leads_or_may_lead(state, self._partitions.node_id):
                must_report = self._reported.get(replica) != state.partition_epoch
            else:
                must_report = replica not in self._answered and self._may_be_replaced(state) and self._is_damaged(key)
            if must_report:
                yield replica, state.partition_epoch
        for topic_id, key, state in self._led_without_space():
            replica = topic_id, key.partition
            if self._reported.get(replica) != state.partition_epoch:
                logger.warning("disk is full, another broker is to lead partition=%s", key)
                yield replica, state.partition_epoch

    def _led_without_space(self) -> "Iterator[tuple[TopicId, TopicPartition, PartitionState]]":
        """Yield partitions with their newest states. Each partition fulfils two conditions: this broker leads it, or is
        to lead it, but the disk is full; and another broker can lead it instead.
        """
        now_s = self._clock.monotonic()
        for partition, since_s in list(self._full.items()):
            replica = partition.replica
            leads = replica.isr is not None and partition.appends_refused
            if partition.deleted or not (leads or replica.leads_after_cut):
                del self._full[partition]
                continue
            topic = self._partitions.topics.get(partition.topic)
            if now_s - since_s < SPACE_PAUSE_S or topic is None or partition.index >= len(topic.partitions):
                continue
            state = topic.partitions[partition.index]
            if replica.isr is not None:
                members, min_isr = replica.isr.committed, replica.isr.min_isr
            else:
                members = state.isr
                min_isr = bounded_min_isr(partition.config.min_insync_replicas, len(state.replicas))
            # If fewer members than min.insync.replicas remained, the next leader could not accept records, either.
            if len(members) > max(min_isr, 1):
                yield topic.topic_id, TopicPartition(partition.topic, partition.index), state

    def _replaceable(self) -> Iterator[TopicPartition]:
        """Yield the replicas whose logs are damaged and may be replaced now."""
        position = self._partitions.reconciler.position
        for topic_id, key, state in self._offline():
            answered = self._answered.get((topic_id, key.partition))
            if answered is not None and answered <= position and self._may_be_replaced(state) and self._is_damaged(key):
                yield key

    def _may_be_replaced(self, state: "PartitionState") -> bool:
        """Return whether another broker leads the partition, and this broker has a replica of it that is in neither
        the ISR nor the ELR nor the last known ELR.
        """
        node_id = self._partitions.node_id
        is_needed = node_id in state.isr or node_id in state.elr or node_id in state.last_known_elr
        return state.leader not in (NO_LEADER, node_id) and not is_needed and node_id in state.replicas

    def _is_damaged(self, key: TopicPartition) -> bool:
        """Return whether the log is offline because of damage: its directory is in use, and its error is not
        temporary.
        """
        partitions = self._partitions
        directory = partitions.directories.of(key)
        if directory is None or directory.path in partitions.directories.failed:
            return False
        return (key.topic, key.partition) not in partitions.reconciler.to_reopen
