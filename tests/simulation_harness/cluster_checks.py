"""Checks of the brokers of a simulated cluster while it runs. Each invariant has a name. With one broker, all of them
except the invariants of the journal are always true.

`ClusterChecks.check` reads the state of all brokers through `cluster_inspection`. It is called at short intervals, and
before a fault ends a process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from simulation_harness.cluster_inspection import (
    BatchView,
    LogPosition,
    ReplicaView,
    batches_of,
    broker_epoch_of,
    image_of,
    processed_image_of,
    records_of,
    replicas_of,
    stored_epochs,
)
from simulation_harness.cluster_ledger import Ledger, Violation
from simulation_harness.compacted_checks import CompactedChecks
from tidelog.metadata import records
from tidelog.metadata.elections import UNCLEAN_ELECTION
from tidelog.metadata.image import EMPTY_IMAGE, NO_LEADER, ImageBuilder, MetadataImage, TopicImage
from tidelog.metadata.records import RECOVERING
from tidelog.metadata.store import Lease
from tidelog.model.ids import TopicPartition
from tidelog.simulation.cluster import DATA, SimCluster, SimNode
from tidelog.wire.records import Record

if TYPE_CHECKING:
    from tidelog.metadata.records import PartitionState

CHECK_INTERVAL_S = 0.1

Place = tuple[bytes, int]
"""A topic id and a partition's number."""
Process = tuple[int, int]
"""A broker and the number of the process among the processes of its host."""


class ClusterChecks:
    """The state of the brokers that was seen until now."""

    def __init__(self, cluster: SimCluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._trace = cluster.world.trace
        self._ledger = ledger
        self._journal = JournalChecks(cluster, ledger)
        self._leaders: dict[tuple[Place, int], Process] = {}
        """The process that led each partition in each leader epoch."""
        self._high_watermarks: dict[tuple[Process, Place, int, object], int] = {}
        """The last high watermark by process, partition and leader epoch."""
        self._positions: dict[tuple[Process, Place], LogPosition] = {}
        self._highest: dict[Place, int] = {}
        """The greatest high watermark that any replica of each partition has had."""
        self._places: dict[TopicPartition, dict[Place, None]] = {}
        """The partitions of topics with the same name."""
        self._start_offsets: dict[TopicPartition, int] = {}
        """The greatest log start offset that any replica of each partition has had."""
        self._committed: dict[Place, CommittedLog] = {}
        self._checked_images: dict[Process, int] = {}
        self._roles: dict[tuple[int, Place], tuple[object, ...]] = {}
        self._last_views: dict[tuple[Process, Place], ReplicaView] = {}
        self._seen: dict[object, tuple[object, ...]] = {}
        """The state of each replica at its last check."""
        self._checked_members: tuple[object, ...] = ()
        """The journal's image, the processes and their broker epochs at the last check of the members of the ISRs."""
        self._has_changed = True
        """Whether the state of any replica has changed since this check."""
        self._compacted = CompactedChecks(cluster)
        self.on_unclean_election: Callable[[TopicPartition, Callable[[int, bytes], bool]], None] | None = None
        """Called when a leader was elected out of the ISR, with a function that says whether it has a record."""
        ledger.has_been_committed = self.has_been_committed
        ledger.deleted_before = self.deleted_before
        self._journal.on_unclean_election = self._unclean_election
        self._journal.on_isr_change = self._check_replicas

    def check(self) -> None:
        """Check the state of all running brokers. Raises Violation."""
        self._journal.check_leases()
        self._check_replicas()

    def check_compacted(self) -> None:
        """Compare the replicas of compacted topics. Raises Violation."""
        self._compacted.check()
        self._ledger.coverage["keys compared"] = self._compacted.compared_keys
        self._ledger.coverage["tombstones missed by a late replica"] = self._compacted.missed_tombstones

    def is_on_leader(self, partition: TopicPartition, offset: int, value: bytes) -> bool:
        """Return whether the leader that the journal names has a record in its files; without a leader, whether any
        replica has it.
        """
        topic = self._journal.image.topics[partition.topic]
        state = topic.partitions[partition.partition]
        brokers = state.replicas if state.leader == NO_LEADER else (state.leader,)
        return any(record.offset == offset and record.value == value for record in self._records(partition, brokers))

    def _unclean_election(self, partition: TopicPartition, leader: int) -> None:
        if self.on_unclean_election is not None:
            records = {record.offset: record.value for record in self._records(partition, (leader,))}
            self.on_unclean_election(partition, lambda offset, value: records.get(offset) == value)

    def _records(self, partition: TopicPartition, brokers: Iterable[int]) -> Iterator[Record]:
        for broker in brokers:
            disk = self._cluster.nodes[broker - 1].host.disk
            yield from records_of(disk.medium, f"{DATA}/{partition.topic}-{partition.partition}")

    def _check_replicas(self) -> None:
        for node in self._cluster.nodes:
            if node.running:
                self.check_node(node)
        self._check_in_sync_replicas()

    def check_node(self, node: SimNode) -> None:
        process = (node.node_id, node.host.starts)
        self._check_image(node, process)
        for view in replicas_of(node, self._seen):
            self._has_changed = True
            self._check_replica(node, process, view)

    def has_been_committed(self, partition: TopicPartition, end_offset: int) -> bool:
        """Return whether the high watermark of any replica of the partition has reached `end_offset`."""
        if self._committed_end(partition) < end_offset:
            self.check()
        return self._committed_end(partition) >= end_offset or self._was_committed_by_a_removed_leader(
            partition, end_offset
        )

    def _was_committed_by_a_removed_leader(self, partition: TopicPartition, end_offset: int) -> bool:
        """Return whether a leader that is no replica any more may have had this high watermark.

        Such a leader may have advanced its high watermark, answered a request and deleted its replica since the last
        check. Then every in-sync replica has the records.
        """
        topic = self._journal.image.topics.get(partition.topic)
        if topic is None:
            return False
        place, state = (topic.topic_id, partition.partition), topic.partitions[partition.partition]
        leaders = {process[0] for (led, _), process in self._leaders.items() if led == place}
        if leaders <= set(state.replicas):
            return False
        nodes = [self._cluster.nodes[member - 1] for member in state.isr]
        views = [self._last_views.get(((node.node_id, node.host.starts), place)) for node in nodes]
        return bool(views) and all(view is not None and view.log_end_offset >= end_offset for view in views)

    def _committed_end(self, partition: TopicPartition) -> int:
        return max((self._highest.get(place, 0) for place in self._places.get(partition, ())), default=0)

    def deleted_before(self, partition: TopicPartition) -> int:
        """Return the offset below which records of the partition were deleted: the greatest start of a log."""
        self.check()
        return self._start_offsets.get(partition, 0)

    def not_converged(self) -> str | None:
        """Return the reason why the cluster has not recovered from all faults; None if it has.

        Every partition must have a leader and a full ISR, and every broker must have processed the whole journal.
        """
        end = self._cluster.store.next_position
        for node in self._cluster.nodes:
            image = processed_image_of(node)
            if image is None or image.position < end:
                return f"{node.host.name} has the journal up to {image and image.position}, its end is {end}"
            for topic in image.topics.values():
                for index, state in enumerate(topic.partitions):
                    if state.leader == NO_LEADER or set(state.isr) != set(state.replicas):
                        return f"{topic.name}-{index} is not fully replicated: {state}"
        return None

    def _check_image(self, node: SimNode, process: Process) -> None:
        """`ReplayEqualsImage`: the metadata of every broker is the replay of the journal up to its position."""
        image = image_of(node)
        if image is not None and self._checked_images.get(process) != image.position:
            self._checked_images[process] = image.position
            self._journal.check_image(node.host.name, image)

    def _check_replica(self, node: SimNode, process: Process, view: ReplicaView) -> None:
        place: Place = view.topic_id, view.partition.partition
        if self._last_views.get((process, place)) == view:
            return
        self._last_views[process, place] = view
        if view.compacted:
            self._compacted.note_end(node.node_id, view)
        name = f"{view.partition} on {node.host.name}"
        role = (view.is_leader, view.leader_epoch, view.isr)
        if self._roles.get((node.node_id, place)) != role:
            self._roles[node.node_id, place] = role
            what = "leader" if view.is_leader else "follower"
            isr = "" if view.isr is None else f" isr={','.join(map(str, view.isr))}"
            details = f"{view.partition} {what} epoch={view.leader_epoch}{isr}"
            self._trace.note(node.host.name, "replica", f"{details} hw={view.high_watermark} end={view.log_end_offset}")
        if view.is_leader:
            self._check_leader(name, process, place, view)
        mark = (process, place, view.leader_epoch, view.opened)
        before = self._high_watermarks.get(mark, 0)
        # An empty log may begin anew at the start of a batch, if DeleteRecords has moved the leader's start into it.
        is_empty = view.log_start_offset == view.high_watermark == view.log_end_offset
        # A follower that was in sync before an unclean election is cut to the log of the new leader.
        is_cut = (
            not view.is_leader and place in self._journal.unclean_places and view.high_watermark == view.log_end_offset
        )
        if view.high_watermark < before and not is_empty and not is_cut:
            text = f"{name} was at {before}, and is at {view.high_watermark} in epoch {view.leader_epoch}"
            raise Violation("MonotonicHighWatermark", text, view.partition)
        if not view.log_start_offset <= view.high_watermark <= view.log_end_offset:
            text = f"{name}: {view.high_watermark} is not within {view.log_start_offset}..{view.log_end_offset}"
            raise Violation("HighWatermarkWithinLog", text, view.partition)
        self._high_watermarks[mark] = view.high_watermark
        self._highest[place] = max(self._highest.get(place, 0), view.high_watermark)
        start_offset = max(self._start_offsets.get(view.partition, 0), view.log_start_offset)
        self._start_offsets[view.partition] = start_offset
        self._places.setdefault(view.partition, {})[place] = None
        if not view.is_online or place in self._journal.unclean_places:
            return
        self._check_epochs(name, node, view)
        position = self._positions.get((process, place), LogPosition())
        if position.next_offset < view.high_watermark:
            batches, position = batches_of(node.host.disk.medium, view, position, view.high_watermark)
            self._positions[process, place] = position
            if not view.compacted:
                self._committed.setdefault(place, CommittedLog(view.partition)).add(name, batches)

    def _check_epochs(self, name: str, node: SimNode, view: ReplicaView) -> None:
        """`StoredEpochs`: the checkpoint on the disk has no leader epoch that a cut has removed. A follower
        names its newest epoch in its next fetch, also after a power cut.

        Two differences are harmless. A flush that began before may store an epoch without records, when a later epoch
        has begun at the same offset. And an epoch may begin earlier than the checkpoint says: after a kill, a log
        starts lower again if the deletion of its first records was not stored.
        """
        if view.epochs is None:
            return
        for epoch, start in stored_epochs(node.host.disk.medium, view.directory):
            is_harmless = any(
                offset <= start if known == epoch else known > epoch and offset == start
                for known, offset in view.epochs
            )
            if start > view.log_start_offset and not is_harmless:
                text = f"{name} has stored {(epoch, start)}, its epochs are {view.epochs}"
                raise Violation("StoredEpochs", text, view.partition)

    def _check_in_sync_replicas(self) -> None:
        """`InSyncReplicasHaveAll`: every member of the ISR in the journal has all committed records, so each of them
        may become the leader.

        A broker that has not registered yet is not checked: its registration may remove it from the ISR.
        """
        image, nodes = self._journal.image, self._cluster.nodes
        members = (image, *((node.running, node.host.starts, broker_epoch_of(node)) for node in nodes))
        if not self._has_changed and members == self._checked_members:
            return
        self._has_changed, self._checked_members = False, members
        for node in nodes:
            registered = image.brokers.get(node.node_id)
            if not node.running or registered is None or broker_epoch_of(node) != registered.epoch:
                continue
            process = (node.node_id, node.host.starts)
            for topic in image.topics.values():
                for index, state in enumerate(topic.partitions):
                    view = self._last_views.get((process, (topic.topic_id, index)))
                    if view is None or not view.is_online or node.node_id not in state.isr:
                        continue
                    if (topic.topic_id, index) in self._journal.unclean_places:
                        continue
                    committed = self._highest.get((topic.topic_id, index), 0)
                    if view.log_end_offset < committed:
                        text = (
                            f"{view.partition} was committed up to {committed}, and broker-{node.node_id}, in the ISR, "
                            f"has it up to {view.log_end_offset}"
                        )
                        raise Violation("InSyncReplicasHaveAll", text, view.partition)

    def _check_leader(self, name: str, process: Process, place: Place, view: ReplicaView) -> None:
        """`OneLeaderPerEpoch`: the journal names each leader, and no second process leads in the same epoch.
        `IsrByController`: the leader's committed ISR is in the journal.
        """
        known = self._leaders.setdefault((place, view.leader_epoch), process)
        if known != process:
            text = f"{name} leads in epoch {view.leader_epoch}, as broker-{known[0]} did in its process {known[1]}"
            raise Violation("OneLeaderPerEpoch", text, view.partition)
        chosen = self._journal.leaders.get((place, view.leader_epoch), process[0])
        if chosen != process[0]:
            text = f"{name} leads in epoch {view.leader_epoch}, for which the controller chose broker-{chosen}"
            raise Violation("OneLeaderPerEpoch", text, view.partition)
        if view.isr is not None and view.partition_epoch is not None:
            journal_isr = self._journal.isrs.get((place, view.partition_epoch))
            if journal_isr is None or set(journal_isr) != set(view.isr):
                text = f"{name} has ISR {view.isr} in partition epoch {view.partition_epoch}, the journal {journal_isr}"
                raise Violation("IsrByController", text, view.partition)


class CommittedLog:
    """The batches that were below the high watermark of any replica of one partition.

    `SameCommittedRecords`: two replicas have the same record at every offset that is below both high watermarks and
    that both logs contain. A replica therefore never gets another batch there, not even after a restart.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self._batches: dict[int, BatchView] = {}
        self._start = 0
        self._end = 0
        self._gaps: list[tuple[int, int]] = []
        """The batches are contiguous from `_start` to `_end`, except for these gaps, whose batches were deleted by
        retention before they were read here."""

    def add(self, name: str, batches: list[BatchView]) -> None:
        for batch in batches:
            known = self._batches.get(batch.base_offset)
            if known is None and self._is_covered(batch.base_offset):
                raise Violation("SameCommittedRecords", f"{name} has {batch}, no other replica has", self.partition)
            if known is not None and known != batch:
                raise Violation("SameCommittedRecords", f"{name} has {batch}, it was {known}", self.partition)
            if not self._batches:
                self._start = batch.base_offset
            elif batch.base_offset > self._end:
                self._gaps.append((self._end, batch.base_offset))
            elif batch.last_offset + 1 < self._start:
                self._gaps.append((batch.last_offset + 1, self._start))
            self._start = min(self._start, batch.base_offset)
            self._end = max(self._end, batch.last_offset + 1)
            self._batches[batch.base_offset] = batch

    def _is_covered(self, offset: int) -> bool:
        """Return whether a batch that begins at this offset must be known."""
        if not self._batches or not self._start <= offset < self._end:
            return False
        return not any(start <= offset < end for start, end in self._gaps)


class JournalChecks:
    """Replays the journal as the store receives it, and checks every entry."""

    def __init__(self, cluster: SimCluster, ledger: Ledger) -> None:
        self._store = cluster.store
        self._trace = cluster.world.trace
        self._ledger = ledger
        self._now_ms = lambda: int(cluster.world.loop.time() * 1000)
        self._images: dict[int, MetadataImage] = {0: EMPTY_IMAGE}
        """The image after each entry, by the position of the next entry."""
        self._last = EMPTY_IMAGE
        self.leaders: dict[tuple[Place, int], int] = {}
        """The leader of each partition by leader epoch."""
        self.isrs: dict[tuple[Place, int], tuple[int, ...]] = {}
        """The ISR of each partition by partition epoch."""
        self._expired: dict[Lease, None] = {}
        self._violation: Violation | None = None
        self.unclean_places: dict[Place, None] = {}
        """The partitions of which a leader was elected out of the ISR: committed records may be lost."""
        self.on_unclean_election: Callable[[TopicPartition, int], None] = lambda _partition, _leader: None
        """Called with each such leader."""
        self.on_isr_change: Callable[[], None] = lambda: None
        """Called after each entry that adds a member to an ISR. It may raise Violation."""
        self._isr_has_grown = False
        self._store.on_append = self._process_entry

    @property
    def image(self) -> MetadataImage:
        """The metadata at the journal's end."""
        return self._last

    def check_leases(self) -> None:
        """`LostLeaseStaysLost`: a lease that has expired is not extended; its next holder has a higher epoch. Raises
        also the violation of an earlier entry.
        """
        if self._violation is not None:
            raise self._violation
        now_ms = self._now_ms()
        for lease, expires_ms in self._store.leases.all():
            if expires_ms is not None and expires_ms <= now_ms:
                if lease not in self._expired:
                    self._ledger.coverage["leases expired"] += 1
                self._expired[lease] = None
            elif lease in self._expired and lease.holder:
                raise Violation("LostLeaseStaysLost", f"{lease} had expired, and was extended until {expires_ms}")

    def check_image(self, name: str, image: MetadataImage) -> None:
        replayed = self._images.get(image.position)
        if replayed is None:
            raise Violation("ReplayEqualsImage", f"{name} is at position {image.position} past the journal's end")
        for slot in MetadataImage.__slots__:
            live, stored = _comparable(getattr(image, slot)), _comparable(getattr(replayed, slot))
            if live != stored:
                text = f"{name} at position {image.position} has {slot} {live}, the journal says {stored}"
                raise Violation("ReplayEqualsImage", text)

    def _process_entry(self, position: int, data: bytes, lease: Lease) -> None:
        """Check an entry that the store has appended. A violation is raised by the next `check_leases`."""
        try:
            image = ImageBuilder(self._last).apply(records.decode(data, position).records).build()
            self._check_entry(position, image, lease)
            self._images[image.position] = self._last = image
            if self._isr_has_grown:
                self._isr_has_grown = False
                self.on_isr_change()
        except Violation as violation:
            self._violation = self._violation or violation

    def _check_entry(self, position: int, image: MetadataImage, lease: Lease) -> None:
        """`EntriesByTheController`: an entry is written by the holder of the controller lease while the lease is
        valid. `EpochsIncrease`: a new leader has a higher leader epoch, and a change a higher partition epoch.
        """
        valid = any(held == lease and (end is None or end > self._now_ms()) for held, end in self._store.leases.all())
        holder = lease.holder.partition("/")[0]
        if not valid or lease.epoch != image.controller_epoch or holder != f"broker-{image.controller_id}":
            text = (
                f"entry {position} is by {lease}, the controller is {image.controller_id} in {image.controller_epoch}"
            )
            raise Violation("EntriesByTheController", text)
        if image.controller_epoch != self._last.controller_epoch:
            self._ledger.coverage["controller changes"] += 1
        if image.topics is self._last.topics:
            return
        for topic in image.topics.values():
            before = self._last.topics_by_id.get(topic.topic_id)
            if before is topic:
                continue
            for index, state in enumerate(topic.partitions):
                old = before.partitions[index] if before is not None and index < len(before.partitions) else None
                if old == state:
                    continue
                partition, place = TopicPartition(topic.name, index), (topic.topic_id, index)
                self._check_state(partition, place, old, state)
                if old is not None and not self._is_clean(old, state):
                    self._check_unclean_election(partition, old, state, topic, image)
                    self.unclean_places[place] = None
                    self.on_unclean_election(partition, state.leader)

    def _check_state(
        self, partition: TopicPartition, place: Place, old: "PartitionState | None", state: "PartitionState"
    ) -> None:
        self._trace.note(
            "store",
            "partition",
            f"{partition} leader={state.leader} epoch={state.leader_epoch} isr={','.join(map(str, state.isr))}",
        )
        if not set(state.isr) <= set(state.replicas):
            raise Violation("IsrByController", f"{partition} has ISR {state.isr} of {state.replicas}", partition)
        if state.leader != NO_LEADER:
            chosen = self.leaders.setdefault((place, state.leader_epoch), state.leader)
            if chosen != state.leader:
                text = f"{partition} has leader {state.leader} in epoch {state.leader_epoch}, it was {chosen}"
                raise Violation("OneLeaderPerEpoch", text, partition)
        if old is not None:
            if state.leader_epoch < old.leader_epoch or state.partition_epoch <= old.partition_epoch:
                raise Violation("EpochsIncrease", f"{partition} was {old}, and is {state}", partition)
            self._ledger.coverage["elections"] += state.leader != old.leader
            self._ledger.coverage["ISR changes"] += set(state.isr) != set(old.isr)
            self._isr_has_grown |= not set(state.isr) <= set(old.isr)
        self.isrs[place, state.partition_epoch] = state.isr

    def _is_clean(self, old: "PartitionState", state: "PartitionState") -> bool:
        """Return whether the leader was in sync or eligible, or has not changed. At the end of a reassignment, a leader
        may join the ISR with the same entry.
        """
        if state.leader in (NO_LEADER, old.leader, *old.isr, *old.elr):
            return True
        if (old.adding or old.removing) and not (state.adding or state.removing) and state.leader in state.isr:
            return True
        if state.recovery == RECOVERING and old.last_known_elr == (state.leader,):
            self._ledger.coverage["elections of last known leaders"] += 1
            return True
        return False

    def _check_unclean_election(
        self,
        partition: TopicPartition,
        old: "PartitionState",
        state: "PartitionState",
        topic: TopicImage,
        image: MetadataImage,
    ) -> None:
        """`CleanElections`: only with `unclean.leader.election.enable`, and only while no replica that is in sync or
        eligible is alive, another replica may become the leader.
        """
        text = f"{partition} is led by {state.leader} in {state}, which was not in sync in {old}"
        if dict(topic.config).get(UNCLEAN_ELECTION) != "true":
            raise Violation("CleanElections", text, partition)
        alive = [broker for broker in (*old.isr, *old.elr) if broker in state.replicas and image.is_active(broker)]
        if alive:
            raise Violation("CleanElections", f"{text}, and {alive} are alive", partition)
        self._ledger.coverage["unclean elections"] += 1


def _comparable(value: object) -> object:
    """Return the value in a form that compares by content, and without the order of mappings."""
    if isinstance(value, TopicImage):
        return tuple(_comparable(getattr(value, slot)) for slot in TopicImage.__slots__)
    if isinstance(value, Mapping):
        return {key: _comparable(item) for key, item in value.items()}
    return value
