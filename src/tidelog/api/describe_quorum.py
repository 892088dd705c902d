"""DescribeQuorum (key 55), v0-2 (KIP-595): the controller, and how far the brokers have followed the metadata journal.

Tidelog has no quorum of controllers: the metadata store decides which broker is the controller. In the response, the
leader is the controller, and the leader epoch is the epoch of the controller. Offsets are positions in the journal.
The voters are the controller and all brokers that are not fenced, since each of these can become the controller. The
times of the voters' last fetches are not known, so they are -1 in the response.
"""

from typing import TYPE_CHECKING

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.image import CLUSTER_METADATA, MetadataImage
from tidelog.metadata.link import DescribeQuorum
from tidelog.metadata.quorum import QuorumState
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)
from tidelog.wire.primitives import NO_UUID

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

NOT_HOSTED = "This server does not host this topic-partition."
NODES_SINCE = 2
"""The first version whose response contains directory ids and the addresses of the nodes."""
TIMEOUT_MS = 10_000
"""Longest time, in milliseconds, that the request waits for the controller."""


def handle(
    services: Services, context: RequestContext, request: DescribeQuorumRequest
) -> "Steps[Outcome[DescribeQuorumResponse]]":
    # The first two topics already show whether the request names more than one, so the others are not compared.
    requested = [
        (topic.topic_name, [partition.partition_index for partition in topic.partitions])
        for topic in request.topics[:2]
    ]
    if requested == [(CLUSTER_METADATA, [0])]:
        # This function is a generator of steps. It returns an outcome, here a coroutine, which the caller awaits.
        return _describe(services, context.api_version)
    response = DescribeQuorumResponse()
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            partitions.append(
                ResponsePartitionData(
                    partition.partition_index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message=NOT_HOSTED,
                )
            )
            yield
        response.topics.append(ResponseTopicData(topic.topic_name, partitions))
        yield
    return response


async def _describe(services: Services, version: int) -> DescribeQuorumResponse:
    answer = await services.controller.describe_quorum(DescribeQuorum(TIMEOUT_MS))
    if answer.value is None:
        return DescribeQuorumResponse(error_code=answer.error, error_message=answer.message)
    return _response(services.metadata.image, answer.value, has_nodes=version >= NODES_SINCE)


def _response(image: MetadataImage, state: QuorumState, *, has_nodes: bool) -> DescribeQuorumResponse:
    """Return the response. With `has_nodes`, it contains directory ids and the addresses of the nodes."""
    voters = []
    nodes = []
    for broker_id, position in state.brokers:
        broker = image.brokers.get(broker_id)
        directories = broker.directories if broker is not None and has_nodes else ()
        voters.append(ReplicaState(broker_id, directories[0] if directories else NO_UUID, position))
        if broker is not None and has_nodes:
            listeners = [Listener(endpoint.listener, endpoint.host, endpoint.port) for endpoint in broker.endpoints]
            nodes.append(Node(broker_id, listeners))
    partition = ResponsePartitionData(
        0,
        leader_id=state.controller_id,
        leader_epoch=state.controller_epoch,
        high_watermark=state.end_position,
        current_voters=voters,
    )
    return DescribeQuorumResponse(topics=[ResponseTopicData(CLUSTER_METADATA, [partition])], nodes=nodes)
