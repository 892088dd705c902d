"""Random histories of a partition on several brokers, against a model of a few lines: what was acknowledged.

Elections are clean: the new leader was in the ISR, so nothing that was acknowledged with acks=all may be lost.
"""

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replication_harness import Cluster, Entry, Node, Waiting
from tidelog.replication.replica import LogAppended, Replica

BROKERS = st.integers(1, 3)


class ReplicaHistory(RuleBasedStateMachine):
    @initialize(
        brokers=st.sampled_from([1, 2, 2, 3, 3]),
        isr=st.integers(1, 3),
        min_isr=st.sampled_from([1, 1, 2, 3]),
        fsync=st.booleans(),
    )
    def begin(self, brokers: int, isr: int, min_isr: int, fsync: bool) -> None:
        self.cluster = Cluster(brokers, min_isr=min_isr, fsync=fsync)
        self.cluster.acknowledged = self.acknowledged
        self.committed: dict[int, Entry] = {}
        """The acknowledged records with acks=all, by offset."""
        self.seen: dict[tuple[int, int, int], int] = {}
        """The last high watermark of each start of a broker in each leader epoch."""
        self.produced = 0
        self.cluster.elect(1, self.cluster.replicas[:isr])
        self.cluster.publish()

    def node(self, number: int) -> Node:
        return self.cluster.nodes[(number - 1) % len(self.cluster.nodes) + 1]

    def acknowledged(self, node: Node, waiting: Waiting) -> None:
        if waiting.acks != "all":
            return
        offset = waiting.next_offset - 1
        entry = node.log[offset]
        assert entry == (waiting.leader_epoch, waiting.value), "the record itself, of the epoch in which it was written"
        assert node.replica.leader_epoch == waiting.leader_epoch
        for member in self.cluster.isr:
            log = self.cluster.nodes[member].log
            assert log[offset : offset + 1] == [entry], f"{waiting.value} is acknowledged, in-sync {member} lacks it"
            if self.cluster.fsync:
                assert self.cluster.nodes[member].synced > offset
        self.committed[offset] = entry

    @rule(number=BROKERS, acks=st.sampled_from(["1", "all"]))
    def produce(self, number: int, acks: str) -> None:
        self.produced += 1
        self.node(number).produce(f"r{self.produced}", acks)

    @rule(number=BROKERS, records=st.integers(0, 3))
    def fetch(self, number: int, records: int) -> None:
        self.cluster.fetch(self.node(number).broker, records)

    @rule(number=BROKERS)
    def catch_up(self, number: int) -> None:
        """The second fetch names the end of the first."""
        self.cluster.fetch(self.node(number).broker)
        self.cluster.fetch(self.node(number).broker)

    @rule(number=BROKERS)
    def sync(self, number: int) -> None:
        if self.node(number).is_up and self.cluster.fsync:
            self.node(number).sync()

    @rule(ms=st.sampled_from([1, 10_000, 31_000]))
    def advance(self, ms: int) -> None:
        self.cluster.now_ms += ms
        self.cluster.tick()

    @precondition(lambda self: self.cluster.questions)
    @rule(lost=st.booleans())
    def decide(self, lost: bool) -> None:
        self.cluster.decide(loses_answer=lost)

    @rule(number=BROKERS)
    def publish(self, number: int) -> None:
        self.cluster.publish(self.node(number).broker)

    @rule(number=BROKERS, regains=st.booleans())
    def lose_lease(self, number: int, regains: bool) -> None:
        if self.node(number).is_up:
            self.node(number).lose_lease()
            if regains:
                self.node(number).regain_lease()

    @precondition(lambda self: self.cluster.questions)
    @rule(acks=st.sampled_from(["1", "all"]))
    def lose_and_regain_lease_while_asking(self, acks: str) -> None:
        """The controller has not answered yet. The records that are written now reach the members of the ISR."""
        asker, _ = self.cluster.questions[0]
        if asker.is_up:
            asker.lose_lease()
            asker.regain_lease()
            self.produce(asker.broker, acks)
            for member in self.cluster.isr:
                if member != asker.broker:
                    self.catch_up(member)

    @rule(number=BROKERS)
    def regain_lease(self, number: int) -> None:
        if self.node(number).is_up:
            self.node(number).regain_lease()

    @rule(number=BROKERS, seen=st.lists(BROKERS, max_size=3))
    def elect(self, number: int, seen: list[int]) -> None:
        """A clean election: the leader is in the ISR and lives; members that are down leave the ISR."""
        cluster = self.cluster
        living = tuple(member for member in cluster.isr if cluster.nodes[member].is_up)
        if living:
            cluster.elect(living[number % len(living)], living)
            for each in dict.fromkeys(seen):
                cluster.publish(self.node(each).broker)

    @rule(number=BROKERS)
    def stop(self, number: int) -> None:
        """A kill keeps the page cache. With fsync a power cut takes what was not synced."""
        node = self.node(number)
        if node.is_up:
            node.stop()
            if self.cluster.fsync:
                del node.log[node.synced :]

    @rule(number=BROKERS)
    def start(self, number: int) -> None:
        if not self.node(number).is_up:
            self.node(number).start()

    @rule(number=BROKERS)
    def lose_log(self, number: int) -> None:
        self.cluster.lose_log(self.node(number).broker)
        self.forget_high_watermarks(self.node(number))

    def forget_high_watermarks(self, node: Node) -> None:
        if not node.log:
            self.seen = {key: offset for key, offset in self.seen.items() if key[0] != node.broker}

    @rule(number=BROKERS, is_late=st.booleans(), is_seen=st.booleans())
    def lose_log_while_the_leader_asks(self, number: int, is_late: bool, is_seen: bool) -> None:
        """The leader asks for a replica whose log is lost before the controller decides, or a fetch that names the end
        of the lost log arrives only then (`is_late`).
        """
        cluster, joining = self.cluster, self.node(number).broker
        cluster.publish()
        if cluster.leader < 0 or joining in cluster.isr:
            return
        self.produce(cluster.leader, "all")
        for member in cluster.isr:
            self.catch_up(member)
        cluster.fetch(joining)
        if is_late:
            cluster.hold_fetch(joining)
        else:
            cluster.fetch(joining)
        self.lose_log(joining)
        if is_seen:
            cluster.publish(cluster.leader)
        while cluster.held_fetches:
            cluster.deliver_fetch()
        while cluster.questions:
            cluster.decide()

    @rule(number=BROKERS)
    def hold_fetch(self, number: int) -> None:
        self.cluster.hold_fetch(self.node(number).broker)

    @precondition(lambda self: self.cluster.held_fetches)
    @rule()
    def deliver_fetch(self) -> None:
        self.cluster.deliver_fetch()

    @rule(number=BROKERS)
    def checkpoint(self, number: int) -> None:
        if self.node(number).is_up:
            self.node(number).checkpoint()

    @rule(holds=st.booleans())
    def hold_cuts(self, holds: bool) -> None:
        self.cluster.holds_cuts = holds

    @rule(number=BROKERS)
    def end_cut(self, number: int) -> None:
        if self.node(number).is_up and self.node(number).held_cut is not None:
            self.node(number).end_cut()

    @rule(min_isr=st.integers(1, 3))
    def change_min_isr(self, min_isr: int) -> None:
        self.cluster.set_min_isr(min_isr)

    @invariant()
    def the_high_watermark_never_goes_back(self) -> None:
        for broker, node in self.cluster.nodes.items():
            replica = node.replica
            assert 0 <= replica.high_watermark <= replica.end_offset == node.end or not node.is_up
            key = (broker, node.broker_epoch, replica.leader_epoch)
            assert replica.high_watermark >= self.seen.get(key, 0), f"broker {broker}"
            self.seen[key] = replica.high_watermark

    @invariant()
    def a_leaders_marks_are_in_order_and_below_the_least_end_of_the_isr(self) -> None:
        for node in self.cluster.nodes.values():
            replica = node.replica
            if node.is_up and replica.leads:
                assert replica.high_watermark <= replica.local_mark <= replica.end_offset
                if replica.leader_epoch == self.cluster.leader_epoch:
                    for member in self.cluster.isr:
                        assert (
                            self.cluster.nodes[member].log[: replica.high_watermark]
                            == node.log[: replica.high_watermark]
                        )

    @invariant()
    def no_acknowledged_record_is_lost(self) -> None:
        """Each member of the ISR has them all, so whoever is elected has them, too."""
        for member in self.cluster.isr:
            log = self.cluster.nodes[member].log
            for offset, entry in self.committed.items():
                assert log[offset : offset + 1] == [entry], f"broker {member} lacks {entry.value}"

    @invariant()
    def no_clean_election_costs_committed_records(self) -> None:
        assert not [line for line in self.cluster.said if "committed records are lost" in line]
        self.cluster.said.clear()


TestReplicaHistory = ReplicaHistory.TestCase
TestReplicaHistory.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_the_short_way_of_a_broker_without_followers_is_the_long_way() -> None:
    def alone() -> Replica:
        cluster = Cluster(1)
        cluster.elect(1)
        cluster.publish()
        assert cluster.nodes[1].replica.is_alone
        return cluster.nodes[1].replica

    short, long = alone(), alone()
    for end_offset in (1, 5, 6):
        short.appended_alone(end_offset)
        long.step(LogAppended(end_offset, True), 0)
        for name in ("end_offset", "local_mark", "high_watermark"):
            assert getattr(short, name) == getattr(long, name) == end_offset
