"""Any history of starts that succeed or fail, kills, power cuts and stops of three brokers with one partition.

The model knows which committed records each broker has in its page cache and on its disks, and what `broker.run` says
in each of its two directories. It checks the rule of registrations (KIP-966) from both sides: a broker that may lack
committed records has no place in the ISR or the ELR, and a broker that certainly has all of them keeps its place.
"""

from typing import NamedTuple

from hypothesis import event
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from metadata_harness.journal_life import JournalLife, directory, states
from tidelog.broker.last_run import LastRun, common_run
from tidelog.metadata.controller import NewTopic, create_topics
from tidelog.metadata.elections import elect_leaders
from tidelog.metadata.image import NO_LEADER
from tidelog.metadata.isr_changes import IsrProposal, alter_partitions
from tidelog.metadata.records import RECOVERED, RECOVERING, DirectoryId, PartitionState
from tidelog.metadata.registration import fence_broker
from tidelog.wire.errors import ErrorCode

BROKERS = (1, 2, 3)
MIN_ISR = 2
DIRECTORIES = 2
broker_ids = st.sampled_from(BROKERS)
written_directories = st.sampled_from([DIRECTORIES, *range(DIRECTORIES + 1)])


class Request(NamedTuple):
    """What a start says about the run before it."""

    incarnation: str
    previous_epoch: int
    is_synced: bool
    boot_id: str
    directories: tuple[DirectoryId, ...]


class Node:
    """The machine, the directories and the process of one broker."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.runs = [LastRun()] * DIRECTORIES
        """The content of `broker.run` in each directory; it is durable."""
        self.cached = self.synced = 0
        """Numbers of committed records in the page cache and on the disks."""
        self.boot = 0
        self.epoch = -1
        """The epoch with which the running process is registered; -1 if no process runs."""
        self.is_ready = False
        """Whether the process has written its epoch into all directories, so that it sends heartbeats."""
        self.syncs_all = False
        """Whether every record is synced before it is acknowledged, so that the mark is stored."""
        self.clean = [False] * DIRECTORIES
        """Whether each directory has the mark of a clean stop."""
        self.copy: tuple[list[LastRun], list[bool], int] | None = None
        """A backup of both directories: `runs`, `clean` and `cached`. It was made while no process ran."""
        self.is_restored = False
        """Whether a directory was replaced by its backup since the last unfencing."""
        self.is_certain = False
        """Whether it was certain at any registration after the last unfencing that all records are synced."""
        self.acknowledging_boot = -1
        """The boot in which the broker was unfenced last."""

    @property
    def runs_now(self) -> bool:
        return self.epoch >= 0

    def end(self) -> None:
        self.epoch, self.is_ready, self.syncs_all = -1, False, False

    def request(self, incarnation: str) -> Request:
        last = common_run(self.runs)
        is_synced = all(self.clean) or last.is_synced
        ids = tuple(directory(10 * self.broker_id + number) for number in range(DIRECTORIES))
        return Request(incarnation, last.broker_epoch, is_synced, f"boot-{self.broker_id}-{self.boot}", ids)


class RegistrationHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.life = JournalLife(elr=True, min_insync_replicas=str(MIN_ISR))
        self.nodes = {broker_id: Node(broker_id) for broker_id in BROKERS}
        self.old_requests: list[tuple[int, Request]] = []
        """Requests of processes that have ended."""
        self.committed = 0
        self.leader_epoch = 0
        """The last leader epoch whose election was checked."""
        for broker_id in BROKERS:
            self.start(broker_id, DIRECTORIES, False, False)
            self.beat(broker_id)
        new = NewTopic("t", assignments=[(0, list(BROKERS))])
        self.life.decide(create_topics(self.life.image, [new], self.life.config, self.life.new_id))

    @property
    def state(self) -> PartitionState:
        return states(self.life.image)["t", 0]

    # Starts

    @rule(broker=broker_ids, written=written_directories, backwards=st.booleans(), fsync=st.booleans())
    def start(self, broker: int, written: int, backwards: bool, fsync: bool) -> None:
        """Start a process. It ends after it has written its epoch into `written` directories, unless these are all."""
        node = self.nodes[broker]
        if node.runs_now:
            return
        before = self.state if self.life.image.topics else None
        request = node.request(f"run-{self.life.image.position}")
        node.is_certain = node.is_certain or request.is_synced
        node.epoch = self.life.register(broker, **request._asdict())
        if before is not None and broker in (*before.isr, *before.elr):
            self._check_place(node, others=[member for member in before.isr if member != broker])
        self.check_places()
        node.clean = [False] * DIRECTORIES
        node.syncs_all = request.is_synced and fsync
        run = LastRun(request.incarnation, node.epoch, request.boot_id, is_synced=node.syncs_all)
        for number in list(range(DIRECTORIES))[:: -1 if backwards else 1][:written]:
            node.runs[number] = run
        node.is_ready = written == DIRECTORIES
        if not node.is_ready:
            self.old_requests.append((broker, request))
            node.end()

    def _check_place(self, node: Node, others: list[int]) -> None:
        """Check that a broker that certainly has all records keeps its place: it was in the ISR or in the ELR."""
        if node.is_restored:
            return
        keeps_all = node.is_certain or node.boot == node.acknowledging_boot
        if keeps_all and len(others) < MIN_ISR:
            assert node.broker_id in self.state.elr, self.state
            event("kept its place")
        elif not keeps_all:
            assert node.broker_id not in (*self.state.isr, *self.state.elr)
            event("lost its place")

    @rule(broker=broker_ids)
    def beat(self, broker: int) -> None:
        node = self.nodes[broker]
        if self._serves(broker):
            if self.life.image.brokers[broker].fenced:
                node.is_certain, node.is_restored, node.acknowledging_boot = False, False, node.boot
            self.life.beat(broker)

    @rule(data=st.data())
    def deliver_late(self, data: st.DataObject) -> None:
        """The controller gets the registration of a process that has ended already, and whose lease has ended."""
        if self.old_requests:
            broker, request = self.old_requests.pop(data.draw(st.integers(0, len(self.old_requests) - 1)))
            if not self.nodes[broker].runs_now:
                incarnation = f"{request.incarnation}-{self.life.image.position}"
                self.life.register(broker, **request._replace(incarnation=incarnation)._asdict())

    # Ends

    @rule(broker=broker_ids)
    def kill(self, broker: int) -> None:
        self.nodes[broker].end()

    @rule(broker=broker_ids, lost=st.integers(0, 3))
    def cut_power(self, broker: int, lost: int) -> None:
        node = self.nodes[broker]
        node.end()
        node.boot += 1
        node.cached = node.synced = max(node.synced, node.cached - lost)

    @rule(broker=broker_ids)
    def stop(self, broker: int) -> None:
        node = self.nodes[broker]
        if node.is_ready:
            node.synced = node.cached
            node.end()
            node.clean = [True] * DIRECTORIES

    @rule(broker=broker_ids)
    def end_lease(self, broker: int) -> None:
        incarnation = self.life.image.brokers[broker].incarnation
        self.life.decide(fence_broker(self.life.image, broker, incarnation, self.life.config))

    # Records

    @rule(broker=broker_ids, is_synced=st.booleans(), written=written_directories)
    def change_mark(self, broker: int, is_synced: bool, written: int) -> None:
        """Store or withdraw the mark. The process ends after the first `written` directories, unless these are all."""
        node = self.nodes[broker]
        if node.is_ready:
            if is_synced:
                node.synced = node.cached
            node.syncs_all = is_synced
            for number in range(written):
                node.runs[number] = node.runs[number]._replace(is_synced=is_synced)
            if written < DIRECTORIES:
                node.end()

    # Backups

    @rule(broker=broker_ids)
    def back_up(self, broker: int) -> None:
        node = self.nodes[broker]
        if not node.runs_now:
            node.copy = (list(node.runs), list(node.clean), node.cached)

    @rule(broker=broker_ids, number=st.integers(0, DIRECTORIES - 1))
    def restore(self, broker: int, number: int) -> None:
        node = self.nodes[broker]
        if node.copy is not None and not node.runs_now:
            runs, clean, cached = node.copy
            node.runs[number], node.clean[number] = runs[number], clean[number]
            node.cached, node.synced = min(node.cached, cached), min(node.synced, cached)
            node.is_restored = True

    @rule()
    def run_all(self) -> None:
        """Start all brokers and let them be in sync, if that is possible."""
        for broker in BROKERS:
            self.start(broker, DIRECTORIES, False, False)
            self.beat(broker)
        self.join()
        self.commit()

    @rule()
    def join(self) -> None:
        """All active brokers that run catch up and join the ISR."""
        state, image = self.state, self.life.image
        members = [broker for broker in BROKERS if image.is_active(broker) and self._serves(broker)]
        if state.leader in members:
            isr = [(member, image.brokers[member].epoch) for member in members]
            topic_id = image.topics["t"].topic_id
            proposal = IsrProposal(topic_id, 0, state.leader_epoch, state.partition_epoch, isr, RECOVERED)
            epoch = image.brokers[state.leader].epoch
            for member in members:
                self._replicate(self.nodes[member])
            (result,) = self.life.decide(alter_partitions(image, state.leader, epoch, [proposal], self.life.config))
            assert result.error is ErrorCode.NONE

    @rule()
    def commit(self) -> None:
        state = self.state
        if state.leader != NO_LEADER and len(state.isr) >= MIN_ISR and all(map(self._serves, state.isr)):
            self.committed += 1
            for member in state.isr:
                self._replicate(self.nodes[member])

    @rule()
    def elect_unclean(self) -> None:
        self.life.decide(elect_leaders(self.life.image, 1, None, self.life.config))

    def _replicate(self, node: Node) -> None:
        node.cached = self.committed
        if node.syncs_all:
            node.synced = node.cached

    @invariant()
    def check_elections(self) -> None:
        state = self.state
        if state.leader_epoch == self.leader_epoch or not self._serves(state.leader):
            return
        self.leader_epoch = state.leader_epoch
        present = self.nodes[state.leader].cached
        if present < self.committed:
            assert state.recovery == RECOVERING
            self.committed = present
            for node in self.nodes.values():
                node.cached, node.synced = min(node.cached, present), min(node.synced, present)

    @invariant()
    def check_places(self) -> None:
        """Check every broker whose process is registered. The controller does not know yet what happened to others."""
        for broker_id in (*self.state.isr, *self.state.elr) if self.life.image.topics else ():
            if self._is_registered(broker_id) and self.state.recovery == RECOVERED:
                assert self.nodes[broker_id].cached == self.committed, (broker_id, self.state)

    def _is_registered(self, broker_id: int) -> bool:
        """Return whether the broker's process runs and is the registered one."""
        node = self.nodes[broker_id]
        return node.runs_now and node.epoch == self.life.image.brokers[broker_id].epoch

    def _serves(self, broker_id: int) -> bool:
        return broker_id != NO_LEADER and self._is_registered(broker_id) and self.nodes[broker_id].is_ready

    def teardown(self) -> None:
        self.life.check_replay()


TestRegistrationHistory = RegistrationHistory.TestCase
TestRegistrationHistory.settings = hypothesis_settings(max_examples=200, stateful_step_count=50, deadline=None)
