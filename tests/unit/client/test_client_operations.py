"""Decisions of the client, with the test as brokers: which broker to ask, and how to handle each answer."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from tidelog.client.cluster import Address, Cluster
from tidelog.client.connection import NEWEST
from tidelog.client.errors import BrokerUnreachable, GaveUp, NoBrokerReachable
from tidelog.client.operations import (
    EARLIEST,
    FETCH_BY_NAME,
    LATEST,
    READ_COMMITTED,
    THROTTLED,
    UNKNOWN_TOPIC_ATTEMPTS,
    Answer,
    Ask,
    AskAny,
    Backoff,
    Effect,
    Fetched,
    FetchLimits,
    ListedOffset,
    Operation,
    Pause,
    Produced,
    all_topics,
    fetch,
    list_offsets,
    produce,
    topics,
)
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import (
    ErrorCode,
    LeaderNotAvailable,
    OffsetOutOfRange,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from tidelog.wire.message import Message
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

T = TypeVar("T")

SEED, ONE, TWO = Address("seed", 9092), Address("one", 9092), Address("two", 9092)
BACKOFF = Backoff(100, 300)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC_ID = bytes(range(16))


def metadata(
    leaders: tuple[int, ...] = (1, 2), *, error: int = 0, epoch: int = 5, topic_id: bytes = TOPIC_ID
) -> MetadataResponse:
    partitions = [
        MetadataResponsePartition(partition_index=i, leader_id=leader, leader_epoch=epoch)
        for i, leader in enumerate(leaders)
    ]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(1, "one", 9092), MetadataResponseBroker(2, "two", 9092)],
        topics=[MetadataResponseTopic(error_code=error, name="t", topic_id=topic_id, partitions=partitions)],
    )


class Play:
    """Runs an operation. Asks are answered by `brokers[address](request)`, or with its error; pauses are kept."""

    def __init__(self, *metadata_answers: Message) -> None:
        self.cluster = Cluster([SEED])
        self.metadata: list[Message | NoBrokerReachable] = list(metadata_answers)
        self.brokers: dict[Address, Callable[[Message], Message | BrokerUnreachable]] = {}
        self.asked: list[tuple[Address, Message, int]] = []
        self.metadata_requests: list[MetadataRequest] = []
        self.pauses: list[Pause] = []
        self.pauses_max = 100

    def run(self, operation: Operation[T]) -> T:
        try:
            effect = next(operation)
            while True:
                try:
                    answer = self._answer(effect)
                except (GaveUp, NoBrokerReachable) as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(answer)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _answer(self, effect: Effect) -> Answer:
        if isinstance(effect, AskAny):
            assert isinstance(effect.request, MetadataRequest)
            self.metadata_requests.append(effect.request)
            answer = self.metadata.pop(0) if len(self.metadata) > 1 else self.metadata[0]
            if isinstance(answer, NoBrokerReachable):
                raise answer
            return answer
        if isinstance(effect, Ask):
            self.asked += [(r.address, r.message, r.version_max) for r in effect.requests]
            return [self.brokers[r.address](r.message) for r in effect.requests]
        self.pauses.append(effect)
        if len(self.pauses) > self.pauses_max:
            raise GaveUp("no time left") from effect.because
        return None


def listed(answers: dict[int, tuple[int, int]]) -> ListOffsetsResponse:
    """By partition: error code and offset."""
    partitions = [
        ListOffsetsPartitionResponse(partition_index=i, error_code=code, offset=offset, timestamp=offset * 10)
        for i, (code, offset) in answers.items()
    ]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=partitions)])


def in_turn(*answers: Message | BrokerUnreachable) -> Callable[[Message], Message | BrokerUnreachable]:
    left = list(answers)
    return lambda request: left.pop(0)


def fetched(code: int = 0, records: bytes = b"", **more: object) -> FetchResponse:
    data = PartitionData(error_code=code, records=memoryview(records), **more)  # type: ignore[arg-type]
    return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])


def test_each_leader_is_asked_for_its_own() -> None:
    play = Play(metadata())
    play.brokers = {ONE: in_turn(listed({0: (0, 7)})), TWO: in_turn(listed({1: (0, 9)}))}
    found = play.run(list_offsets(play.cluster, BACKOFF, {T0: LATEST, T1: EARLIEST}, READ_COMMITTED))
    assert found == {T0: ListedOffset(7, 70), T1: ListedOffset(9, 90)}
    [(_, first, _), (_, second, _)] = play.asked
    assert isinstance(first, ListOffsetsRequest)
    assert isinstance(second, ListOffsetsRequest)
    assert (first.replica_id, first.isolation_level) == (-1, READ_COMMITTED)
    [item] = first.topics[0].partitions
    assert (item.partition_index, item.current_leader_epoch, item.timestamp) == (0, 5, LATEST)
    assert second.topics[0].partitions[0].timestamp == EARLIEST
    assert [request.allow_auto_topic_creation for request in play.metadata_requests] == [False]


def test_leaders_are_remembered() -> None:
    play = Play(metadata())
    play.brokers = {ONE: in_turn(listed({0: (0, 7)}), listed({0: (0, 8)}))}
    for offset in (7, 8):
        found = play.run(list_offsets(play.cluster, BACKOFF, {T0: LATEST}, 0))
        assert found[T0].offset == offset
    assert len(play.metadata_requests) == 1


def test_a_moved_leader_is_looked_up_and_only_what_failed_is_asked_again() -> None:
    play = Play(metadata((1, 2)), metadata((1, 1)))
    stale = listed({1: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)})
    play.brokers = {ONE: in_turn(listed({0: (0, 7)}), listed({1: (0, 9)})), TWO: in_turn(stale)}
    found = play.run(list_offsets(play.cluster, BACKOFF, {T0: LATEST, T1: LATEST}, 0))
    assert {tp: each.offset for tp, each in found.items()} == {T0: 7, T1: 9}
    assert [address for address, _, _ in play.asked] == [ONE, TWO, ONE]
    assert [pause.delay_ms for pause in play.pauses] == [100]


def test_an_unreachable_leader_is_asked_again_elsewhere_with_growing_pauses() -> None:
    play = Play(metadata((1,)), metadata((1,)), metadata((1,)), metadata((1,)), metadata((2,)))
    down = BrokerUnreachable(ONE, "connection refused")
    play.brokers = {ONE: lambda _: down, TWO: in_turn(fetched(records=b"abc"))}
    got = play.run(fetch(play.cluster, BACKOFF, T0, 0, FetchLimits()))
    assert bytes(got.records) == b"abc"
    assert [pause.delay_ms for pause in play.pauses] == [100, 200, 300, 300]
    assert {pause.because for pause in play.pauses} == {down}


def test_no_leader_is_waited_for_until_the_time_is_over() -> None:
    play = Play(metadata((-1,)))
    play.pauses_max = 7
    with pytest.raises(GaveUp) as raised:
        play.run(fetch(play.cluster, BACKOFF, T0, 0, FetchLimits()))
    assert isinstance(raised.value.__cause__, LeaderNotAvailable)
    assert len(play.metadata_requests) == 8


def test_an_unknown_topic_is_given_some_time_only() -> None:
    play = Play(metadata(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    with pytest.raises(UnknownTopicOrPartition, match="topic 't'"):
        play.run(topics(play.cluster, BACKOFF, ["t"], create=False))
    assert [pause.delay_ms for pause in play.pauses] == [100, 200, 300, 300]
    play = Play(metadata(error=ErrorCode.LEADER_NOT_AVAILABLE), metadata((1, 2)))
    assert list(play.run(topics(play.cluster, BACKOFF, ["t"], create=True))["t"].leaders) == [0, 1]
    assert all(request.allow_auto_topic_creation for request in play.metadata_requests)


def test_what_else_went_wrong_takes_none_of_that_time() -> None:
    """A broker that restarts may not know its topics for a moment when it is back."""
    play = Play(metadata())
    away = [NoBrokerReachable("restarts")] * 2 * UNKNOWN_TOPIC_ATTEMPTS
    play.metadata = [*away, metadata(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), metadata((1, 2))]
    assert list(play.run(topics(play.cluster, BACKOFF, ["t"], create=False))["t"].leaders) == [0, 1]


def test_a_partition_that_the_topic_does_not_have() -> None:
    play = Play(metadata((1, 2)))
    with pytest.raises(UnknownTopicOrPartition, match="t-5: the topic has 2 partitions"):
        play.run(fetch(play.cluster, BACKOFF, TopicPartition("t", 5), 0, FetchLimits()))


def test_a_final_error_is_raised_at_once_even_beside_a_retriable_one() -> None:
    play = Play(metadata((1, 1)))
    codes = {0: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1), 1: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)}
    play.brokers = {ONE: in_turn(listed(codes))}
    with pytest.raises(Exception, match="t-1: TOPIC_AUTHORIZATION_FAILED"):
        play.run(list_offsets(play.cluster, BACKOFF, {T0: LATEST, T1: LATEST}, 0))
    assert play.pauses == []


def test_every_topic_is_listed_anew() -> None:
    play = Play(metadata((1,)), metadata((1, 2)))
    for count in (1, 2):
        found = play.run(all_topics(play.cluster, BACKOFF))
        assert len(found["t"].leaders) == count
    assert [request.topics for request in play.metadata_requests] == [None, None]


@pytest.mark.parametrize("call", ["topics", "all_topics", "fetch"])
def test_a_cluster_that_restarts_is_waited_for(call: str) -> None:
    play = Play(metadata((1,)))
    play.metadata[:0] = [NoBrokerReachable("all down")] * 3
    play.brokers = {ONE: in_turn(fetched())}
    play.run(
        {
            "topics": topics(play.cluster, BACKOFF, ["t"], create=False),
            "all_topics": all_topics(play.cluster, BACKOFF),
            "fetch": fetch(play.cluster, BACKOFF, T0, 0, FetchLimits()),
        }[call]  # type: ignore[type-var]
    )
    assert [pause.delay_ms for pause in play.pauses] == [100, 200, 300]


def test_a_fetch_says_what_it_wants_and_gives_what_came() -> None:
    play = Play(metadata())
    aborted = [AbortedTransaction(7, 3)]
    more = {"high_watermark": 9, "last_stable_offset": 8, "log_start_offset": 2, "aborted_transactions": aborted}
    play.brokers = {TWO: in_turn(fetched(records=b"xyz", **more))}
    limits = FetchLimits(max_wait_ms=1, min_bytes=2, max_bytes=3, partition_max_bytes=4, isolation=READ_COMMITTED)
    got = play.run(fetch(play.cluster, BACKOFF, T1, 6, limits))
    assert got == Fetched(memoryview(b"xyz"), 9, 8, 2, [(7, 3)])
    [(_, request, version_max)] = play.asked
    assert isinstance(request, FetchRequest)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level) == (1, 2, 3, 1)
    assert (request.replica_id, request.session_id, request.session_epoch) == (-1, 0, -1)
    [topic] = request.topics
    [item] = topic.partitions
    assert (topic.topic, topic.topic_id, version_max) == ("t", TOPIC_ID, NEWEST)
    assert (item.partition, item.fetch_offset, item.partition_max_bytes, item.current_leader_epoch) == (1, 6, 4, 5)


def test_without_topic_ids_topics_are_named() -> None:
    play = Play(metadata(topic_id=bytes(16)))
    play.brokers = {ONE: in_turn(fetched())}
    play.run(fetch(play.cluster, BACKOFF, T0, 0, FetchLimits()))
    assert [version for _, _, version in play.asked] == [FETCH_BY_NAME]


def test_an_offset_out_of_range_is_named() -> None:
    play = Play(metadata())
    play.brokers = {ONE: in_turn(fetched(ErrorCode.OFFSET_OUT_OF_RANGE))}
    with pytest.raises(OffsetOutOfRange, match="t-0: offset 77 is not in the log"):
        play.run(fetch(play.cluster, BACKOFF, T0, 77, FetchLimits()))


def test_an_error_of_the_whole_fetch_counts() -> None:
    play = Play(metadata())
    play.brokers = {ONE: in_turn(FetchResponse(error_code=ErrorCode.UNKNOWN_TOPIC_ID), fetched(records=b"r"))}
    assert bytes(play.run(fetch(play.cluster, BACKOFF, T0, 0, FetchLimits())).records) == b"r"
    assert len(play.metadata_requests) == 2


def test_an_answer_without_the_partition_is_that_of_a_quota() -> None:
    play = Play(metadata())
    play.brokers = {ONE: in_turn(FetchResponse(throttle_time_ms=500))}
    assert play.run(fetch(play.cluster, BACKOFF, T0, 0, FetchLimits())) is THROTTLED
    assert len(play.metadata_requests) == 1


def produced(answers: dict[int, PartitionProduceResponse]) -> ProduceResponse:
    for index, answer in answers.items():
        answer.index = index
    return ProduceResponse(
        responses=[TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=list(answers.values()))]
    )


def test_batches_go_to_their_leaders_and_only_the_refused_go_again() -> None:
    play = Play(metadata((1, 2)), metadata((1, 1)))
    moved = PartitionProduceResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    play.brokers = {
        ONE: in_turn(
            produced({0: PartitionProduceResponse(base_offset=4)}),
            produced({1: PartitionProduceResponse(base_offset=6, log_append_time_ms=77)}),
        ),
        TWO: in_turn(produced({1: moved})),
    }
    done = play.run(produce(play.cluster, BACKOFF, {T0: b"zero", T1: b"one"}, -1, 30_000))
    assert done == {T0: Produced(4, -1), T1: Produced(6, 77)}
    requests = [request for _, request, _ in play.asked]
    sent = [
        (address, [(data.index, data.records) for topic in request.topic_data for data in topic.partition_data])
        for address, request, _ in play.asked
        if isinstance(request, ProduceRequest)
    ]
    assert sent == [(ONE, [(0, b"zero")]), (TWO, [(1, b"one")]), (ONE, [(1, b"one")])]
    assert all(isinstance(r, ProduceRequest) and (r.acks, r.timeout_ms) == (-1, 30_000) for r in requests)


def test_a_refused_batch_is_explained() -> None:
    play = Play(metadata((1,)))
    details = [BatchIndexAndErrorMessage(0, "record 0 is odd")]
    refused = PartitionProduceResponse(
        error_code=ErrorCode.MESSAGE_TOO_LARGE, error_message="too large", record_errors=details
    )
    play.brokers = {ONE: in_turn(produced({0: refused}))}
    with pytest.raises(RecordTooLarge, match="t-0: too large; record 0 is odd"):
        play.run(produce(play.cluster, BACKOFF, {T0: b"zero"}, -1, 30_000))


def test_codes_that_this_release_does_not_know_are_errors_too() -> None:
    play = Play(metadata((1,)))
    play.brokers = {ONE: in_turn(listed({0: (9999, -1)}))}
    with pytest.raises(Exception, match="t-0: error code 9999"):
        play.run(list_offsets(play.cluster, BACKOFF, {T0: LATEST}, 0))


def test_contacts_are_the_known_brokers_and_then_the_seeds() -> None:
    cluster = Cluster([SEED, ONE])
    assert cluster.contacts() == [SEED, ONE]
    cluster.update(metadata())
    assert cluster.contacts() == [ONE, TWO, SEED]
    assert str(Address("::1", 9092)) == "[::1]:9092"


@pytest.mark.parametrize("forgets", [False, True])
def test_a_leader_of_an_older_epoch_is_ignored(*, forgets: bool) -> None:
    """A broker that is cut off from the metadata still names itself. It does not have the newest records."""
    cluster = Cluster([SEED])

    def update(*leaders: int, epoch: int, topic_id: bytes = TOPIC_ID) -> list[int]:
        if forgets:
            cluster.forget(["t"])
        cluster.update(metadata(leaders, epoch=epoch, topic_id=topic_id))
        return [leader.broker_id for leader in cluster.topics["t"].leaders.values()]

    assert update(1, 1, epoch=5) == [1, 1]
    assert update(2, epoch=6) == [2]
    assert update(1, 1, epoch=5) == [2, 1], "the newest epoch of partition 0 is 6"
    assert update(1, 2, epoch=6) == [1, 2], "in one epoch, the last answer counts"
    assert update(2, 2, epoch=-1) == [2, 2], "the broker sends no epochs"
    assert update(-1, -1, epoch=7) == [-1, -1]
    assert update(1, epoch=0, topic_id=bytes(15) + b"\1") == [1], "the topic was created again"
    assert update(1, epoch=9, topic_id=bytes(16)) == [1]
    assert update(2, epoch=3, topic_id=bytes(16)) == [2], "without ids, it may have been created again"
