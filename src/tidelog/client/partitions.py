"""Operations on many partitions, sent to their leaders. Each partition has its own result or failure."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from tidelog.client.cluster import Address, Cluster
from tidelog.client.connection import NEWEST
from tidelog.client.each import Failure, Results, ask_each, retry_temporary_failures
from tidelog.client.error_codes import error_name
from tidelog.client.errors import ClientError, Unreachable
from tidelog.client.operations import (
    FETCH_BY_NAME,
    THROTTLED,
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
) -> Operation[Results[TopicPartition, ListedOffset]]:
    """For each partition, return the same offset as `operations.list_offsets`, or the failure of the partition."""

    def attempt(remaining: list[TopicPartition]) -> Operation[Results[TopicPartition, ListedOffset]]:
        results: Results[TopicPartition, ListedOffset] = {}
        by_leader = yield from leaders(cluster, remaining, results)
        requests = [
            (address, list_offsets_request(cluster, {tp: timestamps[tp] for tp in partitions}, isolation))
            for address, partitions in by_leader.items()
        ]
        answers = yield from ask_each(requests, ListOffsetsResponse, NEWEST)
        for partitions, answer in zip(by_leader.values(), answers, strict=True):
            if isinstance(answer, ClientError):
                results |= dict.fromkeys(partitions, answer)
                continue
            for topic in answer.topics:
                for part in topic.partitions:
                    tp = TopicPartition(topic.name, part.partition_index)
                    code = part.error_code
                    results[tp] = (
                        error_for(code, error_name(code)) if code else ListedOffset(part.offset, part.timestamp)
                    )
        return complete(cluster, remaining, results)

    return (yield from retry_temporary_failures(backoff, timestamps, attempt))


def fetch(
    cluster: Cluster, positions: Mapping[TopicPartition, int], limits: FetchLimits
) -> Operation[Results[TopicPartition, Fetched]]:
    """Fetch record batches of each partition, beginning at its offset in `positions`. There is only one attempt.

    All partitions with the same leader share `limits.max_bytes`. If their records exceed this limit, the leader returns
    records of the partitions that are listed first in `positions`.
    """
    results: Results[TopicPartition, Fetched] = {}
    by_leader = yield from leaders(cluster, positions, results)
    uses_topic_ids = all(
        cluster.topic_id(tp.topic) != NO_TOPIC_ID for partitions in by_leader.values() for tp in partitions
    )
    requests = [
        (address, _fetch_request(cluster, {tp: positions[tp] for tp in partitions}, limits))
        for address, partitions in by_leader.items()
    ]
    names = {cluster.topic_id(tp.topic): tp.topic for tp in positions}
    answers = yield from ask_each(requests, FetchResponse, NEWEST if uses_topic_ids else FETCH_BY_NAME)
    for partitions, answer in zip(by_leader.values(), answers, strict=True):
        if isinstance(answer, ClientError):
            results |= dict.fromkeys(partitions, answer)
            continue
        if answer.error_code:
            results |= dict.fromkeys(partitions, error_for(answer.error_code, error_name(answer.error_code)))
            continue
        # The response to a client over its quota contains no partitions. So a missing partition counts as throttled.
        results |= dict.fromkeys(partitions, THROTTLED)
        for topic in answer.responses:
            name = names.get(TopicId(topic.topic_id), topic.topic) if uses_topic_ids else topic.topic
            for part in topic.partitions:
                code = part.error_code
                results[TopicPartition(name, part.partition_index)] = (
                    error_for(code, error_name(code)) if code else fetched_from(part)
                )
    return complete(cluster, positions, results)


def complete(
    cluster: Cluster, requested: Iterable[TopicPartition], results: Results[TopicPartition, V]
) -> Results[TopicPartition, V]:
    """Return a result or a failure for every requested partition. Remove the topics of failed partitions from the
    metadata that `cluster` caches.
    """
    all_results = {tp: results.get(tp, error_for(-1, "the answer does not mention the partition")) for tp in requested}
    cluster.forget({tp.topic: None for tp, result in all_results.items() if isinstance(result, Exception)})
    return all_results


def leaders(
    cluster: Cluster, partitions: Iterable[TopicPartition], failures: Results[TopicPartition, V]
) -> Operation[dict[Address, list[TopicPartition]]]:
    """Return the partitions grouped by their leaders' addresses. If a partition has no leader, or the metadata of its
    topic cannot be obtained, the failure is added to `failures` instead.
    """
    requested = list(partitions)
    unknown = list(dict.fromkeys(tp.topic for tp in requested if cluster.leader(tp) is None))
    topic_errors: Mapping[str, Failure] = {}
    if unknown:
        try:
            topic_errors = yield from refresh(cluster, unknown)
        except Unreachable as error:
            topic_errors = dict.fromkeys(unknown, error)
    grouped: dict[Address, list[TopicPartition]] = {}
    for tp in requested:
        leader = cluster.leader(tp)
        if tp.topic in topic_errors:
            failures[tp] = topic_errors[tp.topic]
        elif leader is None:
            failures[tp] = no_leader(cluster, tp)
        else:
            grouped.setdefault(leader[0], []).append(tp)
    return grouped


def _fetch_request(cluster: Cluster, positions: Mapping[TopicPartition, int], limits: FetchLimits) -> FetchRequest:
    topics: dict[str, FetchTopic] = {}
    for tp, offset in positions.items():
        new_topic = FetchTopic(topic=tp.topic, topic_id=cluster.topic_id(tp.topic))
        leader = cluster.leader(tp)
        topics.setdefault(tp.topic, new_topic).partitions.append(
            FetchPartition(
                partition=tp.partition,
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
