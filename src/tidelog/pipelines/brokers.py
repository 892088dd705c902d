"""Requests to the brokers that sources and sinks of pipelines need: find a topic, create a topic."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import PipelineError, TemporaryError

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

CREATE_TIMEOUT_MS = 30_000


def connect(bootstrap: str) -> "Client":
    """Return a client of the cluster. Raises PipelineError if the text is not HOST:PORT."""
    from tidelog.client.blocking import Client, ClientConfig

    try:
        return Client(bootstrap, ClientConfig(client_id="tidelog-pipeline"))
    except ValueError as error:
        raise PipelineError(f"bootstrap: {error}") from None


def partition_count(client: "Client", name: str) -> int | None:
    """Return the number of partitions of a topic; None if it does not exist. Raises PipelineError if no broker answers.

    The topic is looked up among all topics: a request for a single topic would create it on a broker that creates
    topics on demand.
    """
    from tidelog.client.errors import ClientError

    try:
        topic = client.all_topics().get(name)
    except ClientError as error:
        raise TemporaryError(f"topic {name}: no answer from the cluster: {error}") from error
    return None if topic is None else len(topic.leaders)


def create_topic(client: "Client", name: str, partitions: int, settings: Mapping[str, str]) -> None:
    """Create a topic, unless it exists. Raises PipelineError."""
    from tidelog.client.cluster import Address
    from tidelog.client.error_codes import error_name
    from tidelog.client.errors import ClientError
    from tidelog.client.operations import Ask, Request
    from tidelog.wire.errors import ErrorCode
    from tidelog.wire.messages.create_topics import (
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
        CreateTopicsResponse,
    )
    from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

    configs = [CreatableTopicConfig(key, value) for key, value in settings.items()]
    topic = CreatableTopic(name, partitions, -1, configs=configs)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS)
    try:
        metadata = client.ask_any(MetadataRequest(topics=[]), client.deadline())
        assert isinstance(metadata, MetadataResponse)
        nodes = {broker.node_id: Address(broker.host, broker.port) for broker in metadata.brokers}
        controller = nodes.get(metadata.controller_id)
        if controller is None:
            answer = client.ask_any(request, client.deadline())
        else:
            tickets = client.send_all(Ask([Request(controller, request)]), client.deadline())
            (collected,) = client.collect(tickets, client.deadline())
            if isinstance(collected, ClientError):
                raise collected
            answer = collected
    except ClientError as error:
        raise TemporaryError(f"topic {name} cannot be created: {error}") from error
    assert isinstance(answer, CreateTopicsResponse)
    (result,) = answer.topics
    if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        reason = result.error_message or error_name(result.error_code)
        raise PipelineError(f"topic {name} cannot be created: {reason}")
