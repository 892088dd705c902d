"""Requests that the sources and sinks of pipelines send to the brokers: look up a topic, create a topic."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from tidelog.pipelines.declarations import PipelineError, TemporaryError

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.wire.message import Message

M = TypeVar("M", bound="Message")

CREATE_TIMEOUT_MS = 30_000
"""Time limit of the broker for creating topics and partitions, in milliseconds."""


def connect(bootstrap: str) -> "Client":
    """Return a client of the cluster. Raises PipelineError if `bootstrap` is not HOST:PORT[,HOST:PORT...]."""
    from tidelog.client.blocking import Client, ClientConfig

    try:
        return Client(bootstrap, ClientConfig(client_id="tidelog-pipeline"))
    except ValueError as error:
        raise PipelineError(f"bootstrap: {error}") from None


def partition_count(client: "Client", name: str) -> int | None:
    """Return a topic's number of partitions; None if it does not exist. Raises TemporaryError if no broker answers.

    All topics are requested, because a request that names the topic would create it on a broker that creates topics
    automatically.
    """
    from tidelog.client.errors import ClientError

    try:
        topic = client.all_topics().get(name)
    except ClientError as error:
        raise TemporaryError(f"topic {name}: no answer from the cluster: {error}") from error
    return None if topic is None else len(topic.leaders)


def create_topic(
    client: "Client", name: str, partitions: int, settings: Mapping[str, str], *, replicas: int = -1
) -> None:
    """Create a topic, unless it exists. `replicas` of -1 stands for the cluster's default.

    Raises ClientError if the cluster does not answer, and PipelineError if it refuses the topic.
    """
    from tidelog.client.error_codes import error_name
    from tidelog.wire.errors import ErrorCode
    from tidelog.wire.messages.create_topics import (
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
        CreateTopicsResponse,
    )

    configs = [CreatableTopicConfig(key, value) for key, value in settings.items()]
    topic = CreatableTopic(name, partitions, replicas, configs=configs)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS)
    (result,) = ask_controller(client, request, CreateTopicsResponse).topics
    if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        reason = result.error_message or error_name(result.error_code)
        raise PipelineError(f"topic {name} cannot be created: {reason}")


def ask_any(client: "Client", request: "Message", response_class: type[M]) -> M:
    """Send the request to any broker. Raises ClientError."""
    answer = client.ask_any(request, client.deadline())
    assert isinstance(answer, response_class)
    return answer


def ask_controller(client: "Client", request: "Message", response_class: type[M]) -> M:
    """Send the request to the controller that the brokers report, or to any broker if they report none.

    Raises ClientError.
    """
    from tidelog.client.cluster import Address
    from tidelog.client.errors import ClientError
    from tidelog.client.operations import Ask, Request
    from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

    metadata = ask_any(client, MetadataRequest(topics=[]), MetadataResponse)
    addresses = {broker.node_id: Address(broker.host, broker.port) for broker in metadata.brokers}
    address = addresses.get(metadata.controller_id)
    if address is None:
        return ask_any(client, request, response_class)
    deadline = client.deadline()
    (answer,) = client.collect(client.send_all(Ask([Request(address, request)]), deadline), deadline)
    if isinstance(answer, ClientError):
        raise answer
    assert isinstance(answer, response_class)
    return answer
