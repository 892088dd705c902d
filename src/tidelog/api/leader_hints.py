"""If a client has asked a broker that does not lead the partition, add the leader and the leader's address to the
answer (KIP-951).
"""

from typing import TYPE_CHECKING

from tidelog.metadata.image import NO_LEADER
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import fetch, produce

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidelog.api.services import Services
    from tidelog.config.endpoints import Endpoint
    from tidelog.wire.messages.fetch import FetchableTopicResponse
    from tidelog.wire.messages.produce import ProduceResponse

PRODUCE_SINCE = 10
FETCH_SINCE = 16
"""The first versions of Produce and Fetch whose responses may name leaders."""
UNKNOWN_LEADER = (NO_LEADER, -1)
"""Broker id and leader epoch of a leader that is not known."""


def leader_of(services: "Services", topic: str | None, index: int) -> tuple[int, int]:
    """Return the leader and the leader epoch of a partition; UNKNOWN_LEADER if there is no such partition.

    If the leader epoch of this broker's replica differs from the epoch in the newest image, the leader that the replica
    knows is returned. Otherwise the image's leader is returned. After this broker's lease has ended, the replicas that
    this broker led may know no leader, but the image still names this broker. Clients log a warning if an answer names
    no leader.
    """
    image = services.metadata.newest.topics.get(topic or "")
    state = image.partitions[index] if image is not None and 0 <= index < len(image.partitions) else None
    partition = None if topic is None else services.partitions.find(topic, index)
    if partition is not None and (state is None or partition.leader_epoch != state.leader_epoch):
        return partition.replica.leader, partition.leader_epoch
    return UNKNOWN_LEADER if state is None else (state.leader, state.leader_epoch)


def address_of(services: "Services", broker_id: int, listener: str) -> "Endpoint | None":
    """Return the address of a broker for the clients of a listener, or None if the broker is fenced, is not
    registered, or has no such listener.
    """
    broker = services.metadata.newest.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return None
    return next((endpoint for endpoint in broker.endpoints if endpoint.listener == listener), None)


def add_to_produce(services: "Services", response: "ProduceResponse", listener: str) -> None:
    """For each partition with NOT_LEADER_OR_FOLLOWER, add its leader and the leader's address to a Produce response.
    The version of the response must be at least PRODUCE_SINCE.
    """
    addresses: dict[int, Endpoint] = {}
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                continue
            name = topic.name or services.partitions.topic_names.get(topic.topic_id)
            leader, epoch = leader_of(services, name, answer.index)
            answer.current_leader = produce.LeaderIdAndEpoch(leader, epoch)
            address = address_of(services, leader, listener)
            if address is not None:
                addresses[leader] = address
    response.node_endpoints = [
        produce.NodeEndpoint(broker, address.host, address.port, services.metadata.newest.brokers[broker].rack)
        for broker, address in addresses.items()
    ]


def fetch_endpoints(
    services: "Services", topics: "Iterable[FetchableTopicResponse]", listener: str
) -> "list[fetch.NodeEndpoint]":
    """Return the addresses of the leaders that are named in the partitions of a Fetch response."""
    endpoints: dict[int, fetch.NodeEndpoint] = {}
    for topic in topics:
        for data in topic.partitions:
            leader = NO_LEADER if data.current_leader is None else data.current_leader.leader_id
            address = None if leader in endpoints else address_of(services, leader, listener)
            if address is not None:
                rack = services.metadata.newest.brokers[leader].rack
                endpoints[leader] = fetch.NodeEndpoint(leader, address.host, address.port, rack)
    return list(endpoints.values())
