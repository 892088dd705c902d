"""Lives of three brokers that replicate: they keep every promise, and faults that are planted are found."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from process_harness import amount
from simulation_harness.cluster_profiles import PROFILES, Profile
from simulation_harness.lives import check_is_found, check_lives, serve_reads_above_the_high_watermark
from tidelog.coordinator.host import CoordinatorHost
from tidelog.log import partition_log
from tidelog.metadata import elections, isr_changes, registration
from tidelog.metadata.leadership import HeldLease
from tidelog.replication import replica as replica_module
from tidelog.replication.followed_replica import FollowedReplica
from tidelog.replication.isr import InSyncReplicas
from tidelog.replication.partition import Partition
from tidelog.replication.replica import BecameFollower, CutTo, Effect, Replica
from tidelog.replication.waiters import Mark
from tidelog.simulation.leases import Leases

BROKERS = 3
SEEDS = amount(24, 100)
"""Number of seeds of each profile; at least the number of kinds of faults in the larger one."""
MINUTES = amount(20, 60) / 60
EVENTS = (
    "controller changes",
    "elections",
    "ISR changes",
    "commits",
    "commits read",
    "commits of members",
    "generations of the group",
    "records acknowledged by the leader",
    "retries",
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("profile", ["replicated", "synced"])
def test_every_promise_is_kept(profile: str) -> None:
    check_lives(profile, brokers=BROKERS, seeds=SEEDS, minutes=MINUTES, events=EVENTS)


# Faults of replication


def cut_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower cuts its log to its own high watermark when it learns of a new leader (KIP-101)."""
    become_follower = Replica._became_follower

    def planted(replica: Replica, event: BecameFollower, now_ms: int) -> list[Effect]:
        effects = become_follower(replica, event, now_ms)
        if not effects or replica._cut_is_running or replica.high_watermark >= replica.end_offset:
            return effects
        replica._cut_is_running = True
        return [*effects[:-1], CutTo(replica.high_watermark, replica.high_watermark)]

    patch.setattr(Replica, "_became_follower", planted)
    _patch_step(patch, BecameFollower, planted)


def acknowledge_before_followers_have_it(patch: pytest.MonkeyPatch) -> None:
    """acks=all waits for the leader's log only."""
    wait, has_reached = Partition.wait, Partition.has_reached
    patch.setattr(Partition, "wait", lambda partition, _mark, *rest: wait(partition, Mark.LOCAL, *rest))
    patch.setattr(Partition, "has_reached", lambda partition, _mark, end: has_reached(partition, Mark.LOCAL, end))


def commit_on_the_leader_alone(patch: pytest.MonkeyPatch) -> None:
    """The high watermark is the end of the leader's log."""

    def planted(_isr: InSyncReplicas, local_mark: int, *_rest: object) -> int:
        return local_mark

    patch.setattr(InSyncReplicas, "high_watermark_limit", planted)


def let_old_leaders_change_the_isr(patch: pytest.MonkeyPatch) -> None:
    """The controller does not check the epochs in AlterPartition."""
    patch.setattr(isr_changes, "_check_proposal", lambda *_: None)


def lead_after_the_epoch_has_ended(patch: pytest.MonkeyPatch) -> None:
    """A leader ignores the metadata that name another leader."""
    become_follower = Replica._became_follower

    def planted(replica: Replica, event: BecameFollower, now_ms: int) -> list[Effect]:
        return [] if replica.leads else become_follower(replica, event, now_ms)

    _patch_step(patch, BecameFollower, planted)


def elect_out_of_the_isr(patch: pytest.MonkeyPatch) -> None:
    """Every replica on a living broker may become the leader."""
    elect = elections._elect

    def planted(state: Any, replicas: Any, _isr: Any, _elr: Any, *rest: Any) -> tuple[int, bool]:
        return elect(state, replicas, replicas, (), *rest)

    patch.setattr(elections, "_elect", planted)


def grow_the_isr_at_once(patch: pytest.MonkeyPatch) -> None:
    """A follower returns into the ISR with its first fetch."""
    may_join = InSyncReplicas.may_join

    def planted(isr: InSyncReplicas, replica: int, _watermark: int, _start: int, *rest: Any) -> bool:
        return may_join(isr, replica, 0, 0, *rest)

    patch.setattr(InSyncReplicas, "may_join", planted)


def control_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    """A controller continues after its lease, and the store accepts its entries."""
    patch.setattr(HeldLease, "check", lambda _lease: None)
    patch.setattr(HeldLease, "is_valid", True)
    patch.setattr(Leases, "check", lambda *_: None)


def use_the_smaller_isr_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    """A leader that asks for a smaller ISR waits no longer for the removed members, although the controller may still
    elect them.
    """

    def maximal(isr: InSyncReplicas) -> tuple[int, ...]:
        return isr.committed if isr.proposed is None else isr.proposed

    patch.setattr(InSyncReplicas, "maximal", property(maximal))


def keep_the_isr_of_a_lost_answer(patch: pytest.MonkeyPatch) -> None:
    """A leader believes that every change of the ISR that it asks for is made."""
    ask = Replica._ask

    def planted(replica: Replica, members: tuple[int, ...]) -> object:
        question = ask(replica, members)
        assert replica.isr is not None
        replica.isr.committed = members
        return question

    patch.setattr(Replica, "_ask", planted)


def return_with_a_lost_disk(patch: pytest.MonkeyPatch) -> None:
    """A broker stays in sync although its machine was restarted without its last records. Only its leaderships end."""
    remove_broker = registration.remove_broker

    def planted(
        changes: Any, image: Any, broker_id: int, rules: Any, *, unclean_stop: bool, has_lost_directory: bool
    ) -> Any:
        assert not has_lost_directory
        if not unclean_stop:
            yield from remove_broker(changes, image, broker_id, rules)
            return

        def is_active(replica: int) -> bool:
            return replica != broker_id and image.is_active(replica)

        for topic in image.topics.values():
            for index, state in enumerate(topic.partitions):
                if state.leader == broker_id:
                    new_state = elections.next_state(state, elections.Target(), rules.of(topic.config), is_active)
                    changes.put(topic, index, new_state)

    patch.setattr(registration, "remove_broker", planted)


def forget_producers_on_followers(patch: pytest.MonkeyPatch) -> None:
    """A follower does not store the state of producers, so a new leader does not know repeated batches."""
    patch.setattr(partition_log, "replay_producer", lambda *_: None)


def commit_offsets_on_the_leader_alone(patch: pytest.MonkeyPatch) -> None:
    """A coordinator confirms commits before its followers have them."""
    is_committed = Partition.is_committed
    patch.setattr(Partition, "is_committed", lambda partition, end: partition.internal or is_committed(partition, end))


def coordinate_in_an_old_epoch(patch: pytest.MonkeyPatch) -> None:
    """A broker keeps the state of a coordinator while another broker leads the partition."""
    serve = CoordinatorHost._serve

    def planted(host: CoordinatorHost[Any], partition: Partition) -> None:
        if partition.index not in host._coordinators:
            serve(host, partition)

    patch.setattr(CoordinatorHost, "_serve", planted)


def fetch_on_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """A follower with `durability=fsync` does not wait for the sync of what it has fetched."""
    patch.setattr(FollowedReplica, "must_sync", False)


def _patch_step(patch: pytest.MonkeyPatch, event: type[Any], step: Callable[..., list[Effect]]) -> None:
    patch.setitem(replica_module._STEPS, event, step)


def only(*faults: str, name: str = "replicated") -> Profile:
    """Return the profile with only these faults, one after another, and without an administrator."""
    faults_by_name = dict.fromkeys(faults, 60.0 / len(faults))
    return PROFILES[name]._replace(faults=faults_by_name, has_administrator=False, topic_configs=({},))


LOSSES = (
    "InSyncReplicasHaveAll|SameCommittedRecords|NoAckedLoss|OneValueForAnOffset|AcknowledgedWhenCommitted"
    "|MonotonicHighWatermark"
)


@pytest.mark.parametrize(
    ("plant", "profile", "invariants"),
    [
        (cut_to_the_high_watermark, only("kill", "isolated broker"), LOSSES),
        (acknowledge_before_followers_have_it, only("kill"), "AcknowledgedWhenCommitted"),
        (commit_on_the_leader_alone, only("kill"), LOSSES),
        (let_old_leaders_change_the_isr, only("isolated broker"), "CleanElections|EpochsIncrease|" + LOSSES),
        (lead_after_the_epoch_has_ended, only("pause", "cut store link"), "OneLeaderPerEpoch|Liveness|" + LOSSES),
        (elect_out_of_the_isr, only("pause", "kill"), "CleanElections"),
        (grow_the_isr_at_once, only("kill", "slow network"), LOSSES),
        (serve_reads_above_the_high_watermark, only("slow network"), "NotAboveHighWatermark"),
        (control_without_a_lease, only("kill", "lost session"), "EntriesByTheController"),
        (use_the_smaller_isr_before_the_answer, only("isolated broker", "pause"), LOSSES),
        (keep_the_isr_of_a_lost_answer, only("isolated broker", "pause"), "IsrByController"),
        (return_with_a_lost_disk, only("power cut behind records"), LOSSES),
        (forget_producers_on_followers, only("kill before an acknowledgement"), "InOrderOnce|NoFinalError"),
        (
            commit_offsets_on_the_leader_alone,  # generations of the group are records of the same log
            only("isolated broker"),
            "CommitsStay|OldMembersAreFenced|GenerationsIncrease",
        ),
        (
            coordinate_in_an_old_epoch,
            only("lost session"),
            "CommitsStay|OldMembersAreFenced|GenerationsIncrease|OneOwner|Liveness",
        ),
        (fetch_on_before_the_sync, only("power cut of all brokers", name="synced"), LOSSES),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    profile: Profile,
    invariants: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_is_found(plant, profile, invariants, monkeypatch, brokers=BROKERS, minutes=0.3)
