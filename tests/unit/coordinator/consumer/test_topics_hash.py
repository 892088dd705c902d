"""The hash by which a group notices that its topics have changed."""

from hashlib import blake2b
from struct import pack

from tidelog.config.endpoints import Endpoint
from tidelog.coordinator.consumer.topics import metadata_hash
from tidelog.metadata.image import BrokerRegistration, MetadataImage, TopicImage
from tidelog.metadata.records import PartitionState
from tidelog.model.ids import TopicId

STATE = PartitionState(1, 0, (1,), (1,), 0)


def image(rack: str | None, partitions: int = 3, topic_id: bytes = b"\1" * 16) -> MetadataImage:
    endpoints = (Endpoint(listener="PLAINTEXT", protocol="PLAINTEXT", host="h", port=9092),)
    topic = TopicImage("t", TopicId(topic_id), (STATE,) * partitions, {})
    return MetadataImage(
        brokers={1: BrokerRegistration(1, 0, "", endpoints, rack)}, topics={"t": topic}, topics_by_id={}
    )


def test_without_racks_it_is_what_logs_have() -> None:
    """Records of groups hold it: were it another one, every group would begin a new epoch after an upgrade."""
    wanted = blake2b(pack(">16sI", b"\1" * 16, 3) + b"\0\0\0", digest_size=8).digest()
    assert metadata_hash(image(None), ["t", "none"]) == int.from_bytes(wanted, "big", signed=True)


def test_it_changes_with_what_it_is_of() -> None:
    images = [image(None), image("a"), image("b"), image(None, partitions=4), image(None, topic_id=b"\2" * 16)]
    assert len({metadata_hash(one, ["t"]) for one in images}) == len(images)
    assert metadata_hash(image(None), ["none"]) == 0
