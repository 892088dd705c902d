"""Each transcript in `leadership/` is a conversation with a coordinator whose partition changes its leader.

Besides the requests of `conversation.py` there are events of the broker, on all partitions of `__consumer_offsets`:

    broker holds              the in-sync replicas fetch nothing: nothing more is committed
    broker commits            the in-sync replicas have fetched everything
    broker resigns            broker 2 becomes the leader
    broker leads              this broker becomes the leader, in the next leader epoch
    broker loses-and-regains  broker 2 becomes the leader, and then this broker again, within one image
    broker cut                the log loses its uncommitted records, as that of a follower does
    broker log-of G t-0=5     the leader before this one wrote this commit of the group
    broker starts             this process of the broker is new: its partitions are opened with the last image
    broker registers          the image says that the process is registered: its leaderships begin new epochs
    broker 2 fenced

`A find G` asks for the coordinator. With TIDELOG_ACCEPT=1 the replies are written into the files.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from conversation import TOPICS, Conversation
from test_transcripts import OnVirtualTime

from group_harness.virtual_broker import NODE_ID, FakePartitions, VirtualBroker, topic_id
from tidelog.coordinator.group.records import OffsetRecord
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.group_records import OffsetCommitValue
from tidelog.wire.records import Record, encode_batch

TRANSCRIPTS = sorted((Path(__file__).parent / "leadership").glob("*.txt"))
OTHER = 2


class OneOfTwo(OnVirtualTime):
    """This broker, node 1, in a cluster with node 2. Only the records that node 2 has written matter of it."""

    def __init__(self) -> None:
        self._partitions = FakePartitions()
        self._begin(None)

    def _begin(self, incarnation: str | None) -> None:
        settings = {"group.initial.rebalance.delay.ms": "300", "group.min.session.timeout.ms": "100"}
        self._broker = VirtualBroker(
            settings, topics=TOPICS, partitions=self._partitions, brokers=(NODE_ID, OTHER), incarnation=incarnation
        )
        self._broker.start_coordinators()
        for partition in self._partitions.table.values():
            partition.replica.is_alone = False
        self._broker.loop.call_soon(self._broker.groups.start)
        self._broker.settle()
        self._began = self._broker.loop.time()

    def find(self, group: str, version: int) -> Any:
        return self._broker.call("FindCoordinator", version, FindCoordinatorRequest(coordinator_keys=[group]))

    def event(self, words: list[str]) -> None:
        getattr(self, "_" + words[0].replace("-", "_"))(*words[1:])
        self._broker.settle()

    def _holds(self) -> None:
        for partition in self._partitions.table.values():
            partition.hold_commits = True

    def _commits(self) -> None:
        for partition in self._partitions.table.values():
            partition.hold_commits = False
            self._broker.loop.call_soon(partition.commit_all)

    def _resigns(self) -> None:
        self._broker.elect(OTHER)

    def _leads(self) -> None:
        self._broker.elect(NODE_ID)

    def _loses_and_regains(self) -> None:
        self._broker.elect(NODE_ID, epochs=2)

    def _cut(self) -> None:
        for partition in self._partitions.table.values():
            partition.cut(partition.high_watermark)

    def _log_of(self, group: str, commit: str) -> None:
        name, _, offset = commit.partition("=")
        topic, _, index = name.rpartition("-")
        value = OffsetCommitValue(offset=int(offset), topic_id=topic_id(topic))
        key, encoded = OffsetRecord(group, topic, int(index), value).encode()
        batch = encode_batch([Record(offset=0, timestamp=0, key=key, value=encoded)])
        log = self._broker.offsets_log(group).log
        header = BatchHeader(batch)
        header.assign(base_offset=log.log_end_offset, leader_epoch=1)
        log.append(batch, header)

    def _starts(self) -> None:
        self._broker.groups.close()
        self._broker.settle()
        for partition in self._partitions.table.values():
            partition.change_role(partition.leader_epoch, leads=False)
        self._begin("second run")

    def _registers(self) -> None:
        self._broker.register()

    def _2(self, state: str) -> None:
        assert state == "fenced"
        self._broker.fence(OTHER)

    def ends(self) -> dict[int, int]:
        """The ends of the logs."""
        return {index: partition.log.log_end_offset for (_, index), partition in self._partitions.table.items()}


class LeadershipConversation(Conversation):
    broker: OneOfTwo

    def _request(self, client: str, verb: str, words: list[str]) -> None:
        if client == "broker":
            self.broker.event([verb, *words])
        elif verb == "find":
            (found,) = self.broker.find(words[0], 6).coordinators
            where = "" if found.error_code else f" node={found.node_id} address={found.host}:{found.port}"
            self.lines.append(f"    {self._at_ms} {client} find {ErrorCode(found.error_code).name}{where}")
        else:
            super()._request(client, verb, words)


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_replies_are_those_of_the_transcript(path: Path) -> None:
    expected = path.read_text()
    broker = OneOfTwo()
    happened = LeadershipConversation(broker).run(expected)
    broker.check()
    if os.environ.get("TIDELOG_ACCEPT"):
        path.write_text(happened)
    assert happened == expected


def test_before_the_registration_nothing_is_appended_and_no_deadline_comes_up() -> None:
    broker = OneOfTwo()
    conversation = LeadershipConversation(broker)
    conversation.run("at 0\nA join g v=3 session=1000\nat 300\nA sync g v=3 generation=1 member=A.1 assign=A.1:x\n")
    broker.event(["starts"])
    before = broker.ends()
    broker.advance_to(10_000)
    assert broker.ends() == before, "the member's session would have ended"
    broker.event(["registers"])
    broker.advance_to(30_000)
    assert broker.ends() != before
    broker.check()
