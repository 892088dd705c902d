"""A protocol fuzzer: the broker answers or closes the connection, never fails inside, and serves other clients."""

import random
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from inputs import SERVED, TOPICS, Input, Inputs

from process_harness import amount, note, seed_of
from process_harness.observed import resident_bytes
from process_harness.raw import RawConnection, response_class
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.frames import decode_response_header
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse

INPUTS = amount(10_000, 120_000)
AT_ONCE = 48
PATIENCE_S = 0.1
"""A request may wait for as long as it says (a long poll, a join); then its connection is closed."""
CHECK_EVERY = 500
MEMORY_BYTES_MAX = 700 << 20
SAFE, SAFE_GROUP = "safe", "safe-group"


class Sent:
    """One connection and its inputs, which leave in one piece."""

    def __init__(self, address: tuple[str, int], inputs: list[Input]) -> None:
        self.inputs = inputs
        self.socket = socket.create_connection(address, timeout=10)
        self.port = self.socket.getsockname()[1]
        self.answers = 0
        self._deadline = time.monotonic() + PATIENCE_S
        self._received = bytearray()
        with suppress(ConnectionError):
            self.socket.sendall(b"".join(sent.frame for sent in inputs))
        self.socket.setblocking(False)

    def outcome(self) -> str | None:
        """What came of it; None while there is more to come."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            data = None
        except ConnectionError:
            data = b""
        if data:
            self._received += data
            while (frame := self._frame()) is not None:
                self._check_answer(frame)
                self.answers += 1
            if self.answers >= len(self.inputs):
                return "answered"
        if data == b"":
            return "closed"
        return "waiting" if time.monotonic() > self._deadline else None

    def _frame(self) -> bytes | None:
        received = self._received
        if len(received) < 4:
            return None
        size = int.from_bytes(received[:4], "big", signed=True)
        assert size >= 4, f"an answer of {size} bytes"
        if len(received) < size + 4:
            return None
        frame = bytes(received[4 : 4 + size])
        del received[: 4 + size]
        return frame

    def _check_answer(self, frame: bytes) -> None:
        """A whole message of the API and version that were asked for, where nothing broken came before."""
        assert self.answers < len(self.inputs), "more answers than requests"
        asked = self.inputs[self.answers]
        before = self.inputs[: self.answers]
        # acks=0 has no answer: behind a produce request one does not know which answer this is.
        if asked.whole and all(sent.whole and sent.name != "Produce" for sent in before):
            correlation, position = decode_response_header(frame, 0, asked.api_key, asked.version)
            if asked.name != "Produce":
                assert correlation == asked.correlation_id, "an answer to another request"
                _, end = response_class(asked.api_key).decode(frame, position, asked.version)
                assert end == len(frame), "bytes behind the answer"


class Neighbour:
    """A client with a topic and a group of its own, which no input touches."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._client = RawConnection(address)
        self._client.create_topic(SAFE)
        self._count = 0
        while self._find_coordinator() == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            pass  # its topic is being made

    def close(self) -> None:
        self._client.socket.close()

    def check(self) -> None:
        """Write, read everything, commit, read the commit."""
        produced = self._client.produce(SAFE, 0, [b"%d" % self._count])
        assert (produced.error_code, produced.base_offset) == (ErrorCode.NONE, self._count)
        self._count += 1
        code, values = self._client.read_all(SAFE, 0)
        assert (code, values) == (ErrorCode.NONE, [b"%d" % number for number in range(self._count)])
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=self._count)
        topic = OffsetCommitRequestTopic(name=SAFE, partitions=[part])
        while self._commit(topic) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            pass
        wanted = OffsetFetchRequestTopic(name=SAFE, partition_indexes=[0])
        fetched = self._client.ask(OffsetFetchRequest(group_id=SAFE_GROUP, topics=[wanted]), 7)
        assert isinstance(fetched, OffsetFetchResponse)
        assert fetched.topics[0].partitions[0].committed_offset == self._count

    def _commit(self, topic: OffsetCommitRequestTopic) -> int:
        answer = self._client.ask(OffsetCommitRequest(group_id=SAFE_GROUP, topics=[topic]), 8)
        assert isinstance(answer, OffsetCommitResponse)
        code = answer.topics[0].partitions[0].error_code
        assert code in (ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return code

    def _find_coordinator(self) -> int:
        answer = self._client.ask(FindCoordinatorRequest(key=SAFE_GROUP), 3)
        assert isinstance(answer, FindCoordinatorResponse)
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return answer.error_code

    def topic_ids(self) -> list[bytes]:
        answer = self._client.ask(MetadataRequest(topics=None), 12)
        assert isinstance(answer, MetadataResponse)
        return [topic.topic_id for topic in answer.topics if topic.name in TOPICS]


class Fuzzing:
    """Some inputs at a time on their way to one broker."""

    def __init__(self, broker: Broker) -> None:
        self.outcomes: Counter[str] = Counter()
        self.refused: list[Input] = []
        """Requests that broke no rule of the protocol and ended their connection all the same."""
        self._broker = broker
        self._under_way: list[Sent] = []
        self._recent: dict[int, list[Input]] = {}
        self._log_seen = 0

    def send(self, inputs: list[Input]) -> None:
        while len(self._under_way) >= AT_ONCE:
            self.settle()
        under_way = Sent((self._broker.host, self._broker.port), inputs)
        self._recent[under_way.port] = inputs
        self._under_way.append(under_way)

    def settle(self) -> None:
        """Take what has come; returns at once or after a moment."""
        select.select([sent.socket for sent in self._under_way], [], [], 0.01)
        left = []
        for sent in self._under_way:
            outcome = sent.outcome()
            if outcome is None:
                left.append(sent)
                continue
            sent.socket.close()
            self.outcomes[outcome] += 1
            # Only a write that fails and wants no answer may end the connection of one who keeps to the protocol.
            if outcome == "closed" and all(item.whole and item.name != "Produce" for item in sent.inputs):
                self.refused.append(sent.inputs[sent.answers])
        self._under_way = left

    def finish(self) -> None:
        while self._under_way:
            self.settle()

    def check_log(self) -> None:
        """No request failed inside the broker; if one did, here it is."""
        log = self._broker.log()
        new, self._log_seen = log[self._log_seen :], len(log)
        failures = [line for line in new.splitlines() if " ERROR " in line]
        for line in failures[:5]:
            port = int(line.partition("peer=127.0.0.1:")[2].split(" ")[0] or 0)
            culprits = self._recent.get(port, [])
            print(line, *(f"{sent.name} v{sent.version} {sent.frame.hex()}" for sent in culprits), sep="\n  ")
        assert not failures, failures[0]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    # Short waits: a join or a long poll that waits for others would hold up everybody behind it.
    settings = {"group.min.session.timeout.ms": 1, "offsets.topic.num.partitions": 2}
    with Broker(process=True, data=tmp_path / "data", settings=settings) as running:
        yield running


@pytest.mark.timeout(amount(300, 3000))
def test_whatever_comes_is_answered_or_closed(broker: Broker) -> None:
    seed = seed_of("protocol fuzzer")
    began = time.monotonic()
    neighbour = Neighbour((broker.host, broker.port))
    with RawConnection((broker.host, broker.port)) as client:
        for topic in TOPICS[:4]:
            client.create_topic(topic, 2)
    neighbour.check()
    inputs = Inputs(seed, neighbour.topic_ids())
    fuzzing = Fuzzing(broker)
    rng = random.Random(seed)
    sent = checked = 0
    while sent < INPUTS:
        several = rng.choice((1, 1, 1, 2, 3))
        fuzzing.send([inputs.next() for _ in range(several)])
        sent += several
        if sent - checked >= CHECK_EVERY:
            checked = sent
            fuzzing.check_log()
            neighbour.check()
            assert resident_bytes(broker.pid) < MEMORY_BYTES_MAX
    fuzzing.finish()
    fuzzing.check_log()
    neighbour.check()
    neighbour.close()
    # What the inputs left of topics and groups can be started from, by every way to end.
    broker.restart()
    broker.kill()
    broker.restart()
    with RawConnection((broker.host, broker.port)) as client:
        assert client.read_all(SAFE, 0)[0] == ErrorCode.NONE
    assert " ERROR " not in broker.log()
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(fuzzing.outcomes.items()))
    note(
        f"protocol fuzzer: {sent} inputs, every API in every version ({len(SERVED)}); connections: {said}; "
        f"{time.monotonic() - began:.0f} s"
    )
    assert fuzzing.outcomes["answered"] > INPUTS // 5
    assert not fuzzing.refused, f"closed: {fuzzing.refused[0]}"
