"""A leader whose broker has no lease serves on only while every other member of its ISR fetches."""

from types import SimpleNamespace
from typing import Any, cast

from tidelog.replication.lease_guard import LeaseGuard
from tidelog.replication.replica import BecameFollower, BecameLeader, Event, FollowerFetched, Replica, Role

LEASE_MS = 9000
EPOCH = 3


class Leader:
    """One partition that the broker 1 leads, and its guard."""

    def __init__(self, isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3), min_isr: int = 1) -> None:
        self.now_ms = 100_000
        self.replica = Replica(1, 10, 10)
        self.step(BecameLeader(EPOCH, 5, isr, replicas, min_isr))
        self.partition = SimpleNamespace(replica=self.replica, step=self.step)
        again: list[None] = []
        self.roles_taken = again
        reconciler = SimpleNamespace(apply_roles_again=lambda: again.append(None))
        self.partitions = PartitionsDouble([self.partition], reconciler)
        self.guard = LeaseGuard(cast(Any, self.partitions), lambda: self.now_ms / 1000, LEASE_MS)

    def step(self, event: Event) -> None:
        self.replica.step(event, self.now_ms)

    def fetch(self, broker: int, offset: int = 10, sent_before_ms: int = 0) -> None:
        self.step(FollowerFetched(EPOCH, broker, 7, offset, proved_ms=self.now_ms - sent_before_ms))


class PartitionsDouble:
    def __init__(self, partitions: list[Any], reconciler: Any) -> None:
        self._partitions = partitions
        self.reconciler = reconciler

    def __iter__(self) -> Any:
        return iter(self._partitions)


def test_it_serves_on_while_all_members_fetch() -> None:
    leader = Leader((1, 2, 3))
    for _ in range(5):
        leader.fetch(2)
        leader.fetch(3)
        leader.now_ms += LEASE_MS // 2
        leader.guard.lease_is_over()
        assert leader.replica.leads
    leader.now_ms += 1
    leader.guard.lease_is_over()
    assert not leader.replica.leads
    assert leader.replica.role is Role.OFFLINE
    assert leader.replica.leader_epoch == EPOCH


def test_one_member_that_does_not_fetch_is_enough_to_resign() -> None:
    leader = Leader((1, 2, 3))
    leader.fetch(2)
    leader.guard.lease_is_over()
    assert not leader.replica.leads


def test_a_fetch_that_may_have_been_sent_before_the_lease_ended_does_not_count() -> None:
    leader = Leader((1, 2))
    leader.fetch(2, sent_before_ms=LEASE_MS // 2)
    leader.guard.lease_is_over()
    assert leader.replica.leads
    leader.now_ms += 1
    leader.fetch(2, sent_before_ms=LEASE_MS // 2 + 1)
    leader.guard.lease_is_over()
    assert not leader.replica.leads


def test_a_replica_outside_the_isr_does_not_count() -> None:
    leader = Leader((1, 2))
    leader.fetch(2)
    leader.guard.lease_is_over()
    assert leader.replica.leads


def test_a_leader_alone_in_its_isr_serves_on() -> None:
    leader = Leader((1,))
    leader.guard.lease_is_over()
    assert leader.replica.leads
    single = Leader((1,), (1,))
    single.guard.lease_is_over()
    assert single.replica.leads


def test_below_the_least_isr_all_replicas_count() -> None:
    """Others may have all committed records, and may be elected (KIP-966)."""
    leader = Leader((1,), min_isr=2)
    leader.fetch(2)
    leader.guard.lease_is_over()
    assert not leader.replica.leads
    watched = Leader((1,), min_isr=2)
    watched.fetch(2)
    watched.fetch(3)
    watched.guard.lease_is_over()
    assert watched.replica.leads
    shrinking = Leader((1, 2), min_isr=2)
    shrinking.fetch(2)
    shrinking.replica.isr.proposed = (1,)  # type: ignore[union-attr]
    shrinking.guard.lease_is_over()
    assert not shrinking.replica.leads


def test_a_member_that_the_leader_has_asked_for_counts() -> None:
    leader = Leader((1,))
    leader.replica.isr.proposed = (1, 2)  # type: ignore[union-attr]
    leader.guard.lease_is_over()
    assert not leader.replica.leads


def test_a_follower_remains_a_follower() -> None:
    leader = Leader((1, 2, 3))
    leader.step(BecameFollower(EPOCH + 1, 2))
    leader.guard.lease_is_over()
    assert leader.replica.role is Role.FOLLOWER


def test_it_leads_the_same_epoch_again() -> None:
    leader = Leader((1, 2, 3))
    leader.guard.lease_is_over()
    leader.guard.lease_is_regained()
    assert len(leader.roles_taken) == 1
    leader.step(BecameLeader(EPOCH, 5, (1, 2, 3), (1, 2, 3), 1))
    assert leader.replica.leads
    assert leader.replica.high_watermark == 10
