"""Requests of clients of a simulated cluster that any broker can answer."""

from collections.abc import Mapping

from tidelog.client.cluster import Cluster
from tidelog.client.errors import Unreachable
from tidelog.client.operations import AskAny, Operation, Retries
from tidelog.simulation.cluster_client import BACKOFF
from tidelog.wire.errors import ErrorCode, error_for
from tidelog.wire.message import Message
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def new_producer(cluster: Cluster) -> Operation[tuple[int, int]]:
    """Return a new producer id and its epoch."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answer = yield from _ask_until_final(cluster, request)
    assert isinstance(answer, InitProducerIdResponse)
    return answer.producer_id, answer.producer_epoch


def create_topic(cluster: Cluster, name: str, partitions: int, config: Mapping[str, str]) -> Operation[None]:
    settings = [CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=settings)
    yield from _ask_until_final(cluster, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))


def _ask_until_final(cluster: Cluster, request: Message) -> Operation[Message]:
    """Send the request to any broker until the response has no retriable error. Raises ApiError for a final error."""
    retries = Retries(cluster, BACKOFF, ())
    while True:
        try:
            answer = yield AskAny(request)
            assert isinstance(answer, CreateTopicsResponse | InitProducerIdResponse)
            code = answer.topics[0].error_code if isinstance(answer, CreateTopicsResponse) else answer.error_code
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return answer
            pause = retries.after(error_for(code, f"{type(request).__name__} is refused"))
        except Unreachable as error:
            pause = retries.after(error)
        yield pause


def delete_topic(cluster: Cluster, topic_id: bytes) -> Operation[bool]:
    """Delete the topic with this id. A request that arrives late deletes no other topic of its name."""
    retries = Retries(cluster, BACKOFF, ())
    while True:
        try:
            answer = yield AskAny(DeleteTopicsRequest([DeleteTopicState(None, topic_id)], timeout_ms=3_000))
            assert isinstance(answer, DeleteTopicsResponse)
            code = answer.responses[0].error_code
            if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
                return True
            pause = retries.after(error_for(code, "the topic is not deleted"))
        except Unreachable as error:
            pause = retries.after(error)
        yield pause
