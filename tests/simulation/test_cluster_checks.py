"""Each check of the brokers of a cluster finds the violation that it checks for, also with several brokers.

The replicas are made up, since the tests change each of them directly.
"""

from collections.abc import Callable, Iterator

import pytest

from simulation_harness import cluster_checks
from simulation_harness.cluster_checks import ClusterChecks
from simulation_harness.cluster_inspection import BatchView, LogPosition, ReplicaView
from simulation_harness.cluster_ledger import Batch, CommittedOffset, Ledger, Violation
from tidelog.metadata import records
from tidelog.metadata.image import EMPTY_IMAGE, ImageBuilder, MetadataImage
from tidelog.metadata.records import (
    BrokerRegistered,
    ClusterNamed,
    ControllerElected,
    JournalRecord,
    PartitionChanged,
    PartitionState,
    TopicCreated,
)
from tidelog.metadata.store import Lease
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.simulation.cluster import SimCluster, SimNode
from tidelog.simulation.world import simulated
from tidelog.wire.records import Record

TOPIC_ID = TopicId(bytes(15) + b"\1")
ORDERS = TopicPartition("orders", 0)
BROKER_EPOCH = 0


class Stage:
    """A cluster of three brokers whose state is made up, and its journal."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.ledger = Ledger()
        self.checks = ClusterChecks(cluster, self.ledger)
        self.views: dict[int, ReplicaView] = {}
        self.batches: dict[int, list[BatchView]] = {}
        self.images: dict[int, MetadataImage] = {}
        self.broker_epochs = dict.fromkeys((1, 2, 3), BROKER_EPOCH)
        self.lease = Lease("controller", "broker-1", 1)
        for node in cluster.nodes:
            assert node.host.runtime
        cluster.store.acquire("controller", "broker-1", None)
        self.image = EMPTY_IMAGE
        state = PartitionState(leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3), partition_epoch=0)
        registered = [BrokerRegistered(node_id, BROKER_EPOCH, "run", (), None) for node_id in (1, 2, 3)]
        topic = TopicCreated("orders", TOPIC_ID, (state,))
        self.append(ClusterNamed("cluster"), ControllerElected(1, 1), *registered, topic)
        for node_id in (1, 2, 3):
            self.follow(node_id, is_leader=node_id == 1, isr=(1, 2, 3) if node_id == 1 else None)

    def append(self, *new: JournalRecord, lease: Lease | None = None, epoch: int = 1) -> None:
        data = records.encode(epoch, new)
        position = self.cluster.store.next_position
        self.cluster.store.next_position = position + 1
        assert self.cluster.store.on_append is not None
        self.cluster.store.on_append(position, data, lease or self.lease)
        self.image = ImageBuilder(self.image).apply(new).build()
        self.images = dict.fromkeys((1, 2, 3), self.image)

    def follow(
        self,
        node_id: int,
        *,
        is_leader: bool = False,
        epoch: int = 0,
        isr: tuple[int, ...] | None = None,
        partition_epoch: int = 0,
        high_watermark: int = 2,
        end: int = 3,
    ) -> None:
        """Set the replica of one broker, and give it batches of one record each."""
        self.views[node_id] = ReplicaView(
            topic_id=TOPIC_ID,
            partition=ORDERS,
            opened=None,
            is_online=True,
            is_leader=is_leader,
            leader_epoch=epoch,
            log_start_offset=0,
            high_watermark=high_watermark,
            log_end_offset=end,
            isr=isr,
            partition_epoch=partition_epoch if isr is not None else None,
            compacted=False,
            directory="/data/orders-0",
        )
        self.batches[node_id] = [BatchView(offset, offset, 0, crc=offset) for offset in range(end)]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with simulated(1) as world:
        made_up = Stage(SimCluster(world, 3))

        def replicas_of(node: SimNode, _seen: object) -> Iterator[ReplicaView]:
            yield from (view for node_id, view in made_up.views.items() if node_id == node.node_id)

        def batches_of(
            medium: object, view: ReplicaView, after: LogPosition, end_offset: int
        ) -> tuple[list[BatchView], LogPosition]:
            (node,) = (node for node in made_up.cluster.nodes if node.host.disk.medium is medium)
            new = [b for b in made_up.batches[node.node_id] if after.next_offset <= b.base_offset < end_offset]
            return new, LogPosition("", 0, end_offset)

        monkeypatch.setattr(cluster_checks, "replicas_of", replicas_of)
        monkeypatch.setattr(cluster_checks, "image_of", lambda node: made_up.images.get(node.node_id))
        monkeypatch.setattr(cluster_checks, "processed_image_of", lambda node: made_up.images.get(node.node_id))
        monkeypatch.setattr(cluster_checks, "batches_of", batches_of)
        monkeypatch.setattr(cluster_checks, "broker_epoch_of", lambda node: made_up.broker_epochs[node.node_id])
        made_up.checks.check()
        yield made_up


def elect(stage: Stage, leader: int, isr: tuple[int, ...]) -> None:
    stage.append(PartitionChanged(TOPIC_ID, 0, leader=leader, isr=isr))


def test_a_cluster_that_replicates_passes(stage: Stage) -> None:
    stage.follow(1, is_leader=True, isr=(1, 2, 3), high_watermark=3, end=5)
    stage.follow(2, high_watermark=3, end=4)
    stage.checks.check()
    elect(stage, 2, (2, 3))
    stage.follow(2, is_leader=True, epoch=1, isr=(2, 3), partition_epoch=1, high_watermark=3, end=4)
    stage.checks.check()  # broker 1 does not know the new leader yet
    stage.follow(1, epoch=1, high_watermark=2, end=4)
    stage.checks.check()  # in another leader epoch a follower's high watermark may be lower
    assert (
        stage.checks.not_converged()
        == f"orders-0 is not fully replicated: {stage.image.topics['orders'].partitions[0]}"
    )
    stage.append(PartitionChanged(TOPIC_ID, 0, isr=(1, 2, 3)))
    assert stage.checks.not_converged() is None
    stage.images[3] = EMPTY_IMAGE
    assert stage.checks.not_converged() == "broker-3 has the journal up to 0, its end is 3"


def second_leader(stage: Stage) -> None:
    stage.follow(2, is_leader=True, isr=(1, 2, 3))


def leader_that_the_journal_does_not_name(stage: Stage) -> None:
    elect(stage, 2, (2, 3))
    stage.follow(3, is_leader=True, epoch=1)


def high_watermark_that_goes_back(stage: Stage) -> None:
    stage.follow(2, high_watermark=1)


def high_watermark_above_the_end(stage: Stage) -> None:
    stage.follow(2, high_watermark=4, end=3)


def other_record_at_the_same_offset(stage: Stage) -> None:
    stage.follow(3, high_watermark=3)
    stage.batches[3][2] = BatchView(2, 2, 0, crc=99)
    stage.follow(2, high_watermark=3)


def other_batch_boundaries(stage: Stage) -> None:
    for node_id in (1, 3):
        stage.follow(node_id, is_leader=node_id == 1, isr=(1, 2, 3) if node_id == 1 else None, end=6)
    stage.follow(2, high_watermark=6, end=6)
    stage.batches[2] = [BatchView(2, 5, 0, crc=7)]
    stage.checks.check()
    stage.follow(3, high_watermark=6, end=6)


def record_of_another_leader_epoch(stage: Stage) -> None:
    stage.follow(3, high_watermark=3)
    stage.batches[3][2] = BatchView(2, 2, 5, crc=2)
    stage.checks.check()
    stage.follow(2, high_watermark=3)


def isr_that_the_leader_changed_alone(stage: Stage) -> None:
    stage.follow(1, is_leader=True, isr=(1, 2), partition_epoch=1)


def isr_of_another_partition_epoch(stage: Stage) -> None:
    stage.append(PartitionChanged(TOPIC_ID, 0, isr=(1, 3)))
    stage.follow(1, is_leader=True, isr=(1, 2, 3), partition_epoch=1)


def isr_member_without_a_replica(stage: Stage) -> None:
    stage.append(PartitionChanged(TOPIC_ID, 0, isr=(1, 2, 4)))


def isr_member_without_a_committed_record(stage: Stage) -> None:
    stage.broker_epochs[3] = -1
    stage.follow(3, high_watermark=1, end=1, epoch=1)
    stage.checks.check()  # broker 3 was restarted, and its registration will remove it from the ISR
    stage.broker_epochs[3] = BROKER_EPOCH


def leader_that_was_not_in_sync(stage: Stage) -> None:
    elect(stage, 1, (1, 2))
    elect(stage, 3, (3,))


def image_that_lacks_an_entry(stage: Stage) -> None:
    stage.append(PartitionChanged(TOPIC_ID, 0, isr=(1, 3)))
    lacking = ImageBuilder(EMPTY_IMAGE)
    lacking.position = stage.image.position
    stage.images[2] = lacking.build()


def image_past_the_end(stage: Stage) -> None:
    beyond = ImageBuilder(stage.image)
    beyond.position += 1
    stage.images[2] = beyond.build()


def entry_of_a_deposed_controller(stage: Stage) -> None:
    stage.cluster.store.leases.release(stage.lease)
    new = stage.cluster.store.acquire("controller", "broker-2", None)
    assert new is not None
    stage.append(ControllerElected(2, new.epoch), lease=new, epoch=new.epoch)
    stage.checks.check()
    stage.append(PartitionChanged(TOPIC_ID, 0, isr=(1,)))


def lease_that_comes_back(stage: Stage) -> None:
    store = stage.cluster.store
    lease = store.acquire("broker-3", "broker-3", 0)
    assert lease is not None
    stage.checks.check()
    store.leases.restore(lease, 5000)


@pytest.mark.parametrize(
    ("spoil", "invariant"),
    [
        (second_leader, "OneLeaderPerEpoch"),
        (leader_that_the_journal_does_not_name, "OneLeaderPerEpoch"),
        (high_watermark_that_goes_back, "MonotonicHighWatermark"),
        (high_watermark_above_the_end, "HighWatermarkWithinLog"),
        (other_record_at_the_same_offset, "SameCommittedRecords"),
        (other_batch_boundaries, "SameCommittedRecords"),
        (record_of_another_leader_epoch, "SameCommittedRecords"),
        (isr_that_the_leader_changed_alone, "IsrByController"),
        (isr_of_another_partition_epoch, "IsrByController"),
        (isr_member_without_a_replica, "IsrByController"),
        (isr_member_without_a_committed_record, "InSyncReplicasHaveAll"),
        (leader_that_was_not_in_sync, "CleanElections"),
        (image_that_lacks_an_entry, "ReplayEqualsImage"),
        (image_past_the_end, "ReplayEqualsImage"),
        (entry_of_a_deposed_controller, "EntriesByTheController"),
        (lease_that_comes_back, "LostLeaseStaysLost"),
    ],
)
def test_a_violation_is_found(stage: Stage, spoil: Callable[[Stage], None], invariant: str) -> None:
    with pytest.raises(Violation, match=invariant):
        spoil(stage)
        stage.checks.check()


def test_records_above_every_high_watermark_must_not_be_read(stage: Stage) -> None:
    def read(last_offset: int, in_answer: int) -> None:
        record = Record(value=b"w:%d:" % last_offset, offset=last_offset)
        stage.ledger.read("reader", ORDERS, 0, in_answer, [Batch(last_offset, last_offset, last_offset, [record])])

    read(1, 2)
    with pytest.raises(Violation, match="NotAboveHighWatermark"):
        read(2, 3)  # the answer says 3, but no broker has had this high watermark
    stage.follow(1, is_leader=True, isr=(1, 2, 3), high_watermark=3)
    read(2, 3)
    with pytest.raises(Violation, match="MonotonicHighWatermark"):
        read(1, 2)


def test_records_of_a_writer_are_in_order_and_once() -> None:
    ledger = Ledger()
    ledger.acknowledge(ORDERS, 5, [b"w:0:", b"w:1:"])
    ledger.acknowledge(ORDERS, 9, [b"w:2:"])
    for offset, value in ((12, b"w:1:"), (8, b"w:3:")):
        with pytest.raises(Violation, match="InOrderOnce"):
            Ledger.acknowledge(ledger, ORDERS, offset, [value])
    with pytest.raises(Violation, match="OneValueForAnOffset"):
        ledger.acknowledge(ORDERS, 9, [b"w:7:"])


def test_deleted_records_of_a_writer_may_be_repeated(stage: Stage) -> None:
    for node_id in (1, 2, 3):
        isr = (1, 2, 3) if node_id == 1 else None
        stage.follow(node_id, is_leader=node_id == 1, isr=isr, high_watermark=6, end=6)
    stage.ledger.acknowledge(ORDERS, 0, [b"w:0:", b"w:1:", b"w:2:"])
    stage.views[1] = stage.views[1]._replace(log_start_offset=2)
    stage.ledger.acknowledge(ORDERS, 3, [b"w:0:"])
    with pytest.raises(Violation, match="InOrderOnce"):
        stage.ledger.acknowledge(ORDERS, 4, [b"w:1:", b"w:2:"])  # the record at 2 was not deleted
    stage.views[1] = stage.views[1]._replace(log_start_offset=3)
    stage.ledger.acknowledge(ORDERS, 4, [b"w:1:", b"w:2:"])
    assert stage.ledger.coverage["repeats of deleted records"] > 0


def test_a_committed_offset_is_one_of_those_that_it_may_be() -> None:
    committed = CommittedOffset()
    assert committed.may_be(None)
    committed.attempt(10)
    assert committed.may_be(None)
    assert committed.may_be(10)
    committed.confirm(10, repeated=False)
    assert not committed.may_be(None), "it would be lost"
    committed.attempt(20)
    committed.give_up(20)
    committed.attempt(30)
    committed.confirm(30, repeated=False)
    assert not committed.may_be(10), "it would be an old one"
    assert committed.may_be(20), "a request without an answer may be executed late"
    committed.attempt(None)
    committed.confirm(None, repeated=False)
    assert committed.may_be(None)
    assert not committed.may_be(30), "it would be resurrected"


@pytest.mark.parametrize(("removed", "end"), [(True, 5), (True, 4), (False, 5)])
def test_a_removed_leader_may_have_advanced_the_high_watermark(stage: Stage, *, removed: bool, end: int) -> None:
    """Broker 1 answers with the high watermark 5 and deletes its replica before the next check. All in-sync replicas
    must have the records.
    """
    elect(stage, 2, (2, 3))
    if removed:
        stage.append(PartitionChanged(TOPIC_ID, 0, replicas=(2, 3)))
        del stage.views[1]
    stage.follow(2, is_leader=True, epoch=1, isr=(2, 3), partition_epoch=1 + removed, end=6)
    stage.follow(3, epoch=1, end=end)
    assert stage.checks.has_been_committed(ORDERS, 5) is (removed and end == 5)
