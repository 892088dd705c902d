"""What a client asks the leaders of many partitions; each partition has an answer of its own."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from tidelog.client.cluster import Address, Cluster
from tidelog.client.connection import NEWEST
from tidelog.client.each import Each, Failure, ask_each, until_settled
from tidelog.client.error_codes import name_of
from tidelog.client.errors import BrokerUnreachable, Unreachable
from tidelog.client.operations import (
    FETCH_BY_NAME,
    HELD_BACK,
    Backoff,
    Fetched,
    FetchLimits,
    ListedOffset,
    Operation,
    fetched_from,
    list_offsets_request,
    no_leader,
    refresh,
)
from tidelog.model.ids import NO_TOPIC_ID, TopicId, TopicPartition
from tidelog.wire.errors import error_for
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.list_offsets import ListOffsetsResponse

V = TypeVar("V")


def list_offsets(
    cluster: Cluster, backoff: Backoff, timestamps: Mapping[TopicPartition, int], isolation: int
) -> Operation[Each[TopicPartition, ListedOffset]]:
    """As `operations.list_offsets`, but a partition that cannot tell does not hide the others."""

    def attempt(left: list[TopicPartition]) -> Operation[Each[TopicPartition, ListedOffset]]:
        found: Each[TopicPartition, ListedOffset] = {}
        leaders = yield from _leaders(cluster, left, found)
        requests = [
            (address, list_offsets_request(cluster, {place: timestamps[place] for place in places}, isolation))
            for address, places in leaders.items()
        ]
        answers = yield from ask_each(requests, ListOffsetsResponse, NEWEST)
        for places, answer in zip(leaders.values(), answers, strict=True):
            if isinstance(answer, BrokerUnreachable):
                found |= dict.fromkeys(places, answer)
                continue
            for topic in answer.topics:
                for part in topic.partitions:
                    place = TopicPartition(topic.name, part.partition_index)
                    code = part.error_code
                    found[place] = error_for(code, name_of(code)) if code else ListedOffset(part.offset, part.timestamp)
        return _complete(cluster, left, found)

    return (yield from until_settled(backoff, timestamps, attempt))


def fetch(
    cluster: Cluster, positions: Mapping[TopicPartition, int], limits: FetchLimits
) -> Operation[Each[TopicPartition, Fetched]]:
    """Record batches of each partition from its offset on, in one attempt. Those that come first in `positions` are
    served first where `limits` leave no room for all.
    """
    found: Each[TopicPartition, Fetched] = {}
    leaders = yield from _leaders(cluster, positions, found)
    by_id = all(cluster.topic_id(place.topic) != NO_TOPIC_ID for places in leaders.values() for place in places)
    requests = [
        (address, _fetch_request(cluster, {place: positions[place] for place in places}, limits))
        for address, places in leaders.items()
    ]
    names = {cluster.topic_id(place.topic): place.topic for place in positions}
    answers = yield from ask_each(requests, FetchResponse, NEWEST if by_id else FETCH_BY_NAME)
    for places, answer in zip(leaders.values(), answers, strict=True):
        if isinstance(answer, BrokerUnreachable):
            found |= dict.fromkeys(places, answer)
            continue
        if answer.error_code:
            found |= dict.fromkeys(places, error_for(answer.error_code, name_of(answer.error_code)))
            continue
        # A client that is over its quota is told nothing of the partitions.
        found |= dict.fromkeys(places, HELD_BACK)
        for topic in answer.responses:
            name = names.get(TopicId(topic.topic_id), topic.topic) if by_id else topic.topic
            for part in topic.partitions:
                code = part.error_code
                found[TopicPartition(name, part.partition_index)] = (
                    error_for(code, name_of(code)) if code else fetched_from(part)
                )
    return _complete(cluster, positions, found)


def _complete(
    cluster: Cluster, asked: Iterable[TopicPartition], found: Each[TopicPartition, V]
) -> Each[TopicPartition, V]:
    """An entry for each that was asked about; what is known of the topics of failures is asked for anew next time."""
    complete = {place: found.get(place, error_for(-1, "the answer does not mention it")) for place in asked}
    cluster.forget({place.topic: None for place, each in complete.items() if isinstance(each, Exception)})
    return complete


def _leaders(
    cluster: Cluster, places: Iterable[TopicPartition], failures: Each[TopicPartition, V]
) -> Operation[dict[Address, list[TopicPartition]]]:
    """The partitions by their leaders; those without one, or of a topic that is refused, go to `failures`."""
    wanted = list(places)
    unknown = list(dict.fromkeys(place.topic for place in wanted if cluster.leader(place) is None))
    refused: Mapping[str, Failure] = {}
    if unknown:
        try:
            refused = yield from refresh(cluster, unknown)
        except Unreachable as error:
            refused = dict.fromkeys(unknown, error)
    grouped: dict[Address, list[TopicPartition]] = {}
    for place in wanted:
        leader = cluster.leader(place)
        if place.topic in refused:
            failures[place] = refused[place.topic]
        elif leader is None:
            failures[place] = no_leader(cluster, place)
        else:
            grouped.setdefault(leader[0], []).append(place)
    return grouped


def _fetch_request(cluster: Cluster, positions: Mapping[TopicPartition, int], limits: FetchLimits) -> FetchRequest:
    topics: dict[str, FetchTopic] = {}
    for place, offset in positions.items():
        empty = FetchTopic(topic=place.topic, topic_id=cluster.topic_id(place.topic))
        leader = cluster.leader(place)
        topics.setdefault(place.topic, empty).partitions.append(
            FetchPartition(
                partition=place.partition,
                current_leader_epoch=leader[1].epoch if leader else -1,
                fetch_offset=offset,
                partition_max_bytes=limits.partition_max_bytes,
            )
        )
    return FetchRequest(
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=limits.isolation,
        topics=list(topics.values()),
    )
