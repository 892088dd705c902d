"""A small client for scenarios: typed requests and responses over the network of any runtime.

The client never retries. It returns each response unchanged, and the caller checks its error code.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from tidelog.client.async_link import AsyncLink
from tidelog.client.errors import BrokenProtocol
from tidelog.wire.batches import Codec
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tidelog.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.wire.primitives import Buffer
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

PRODUCE_BY_NAME = 12
FETCH_BY_NAME = 12
"""The last versions that contain topic names; later versions contain topic ids only."""

FETCH_BYTES_MAX = 1 << 20


class SimClient(AsyncLink):
    """One connection to one broker. `connect` opens it and negotiates the API versions."""

    def end_requests(self) -> None:
        """Close the sending side, as a half-closed client does. Responses to earlier requests are still received."""
        if self.open:
            self._stream.write_eof()

    # Requests

    async def metadata(self, topics: Sequence[str] | None = None) -> MetadataResponse:
        """Request the metadata of some topics, or of all topics when `topics` is None."""
        requested = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        return await self.ask(MetadataRequest(topics=requested, allow_auto_topic_creation=False), MetadataResponse)

    async def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> CreatableTopicResult:
        settings = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=settings)
        response = await self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), CreateTopicsResponse)
        return response.topics[0]

    async def produce(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        *,
        acks: int = -1,
        codec: int = Codec.NONE,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> PartitionProduceResponse:
        """Produce one batch. `producer` is the id, epoch and base sequence of an idempotent producer. `acks` is 1 or -1
        (all).
        """
        assert acks, "with acks=0 there is no response"
        producer_id, producer_epoch, base_sequence = producer
        batch = encode_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])
        response = await self.ask(request, ProduceResponse, version_max=PRODUCE_BY_NAME)
        return response.responses[0].partition_responses[0]

    async def init_producer(self) -> InitProducerIdResponse:
        """Get a producer id and epoch for an idempotent producer."""
        return await self.ask(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), InitProducerIdResponse
        )

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        wait_ms: int = 0,
        read_committed: bool = False,
        leader_epoch: int = -1,
    ) -> tuple[PartitionData, list[Record]]:
        """Fetch one partition. Returns its part of the response, and the records at and after `offset`.

        The broker waits up to `wait_ms` for the first byte. `leader_epoch` is the leader epoch that the client knows.
        With -1, the broker does not check it.
        """
        requested = FetchPartition(
            partition=partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=FETCH_BYTES_MAX,
        )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            isolation_level=int(read_committed),
            topics=[FetchTopic(topic=topic, partitions=[requested])],
        )
        response = await self.ask(request, FetchResponse, version_max=FETCH_BY_NAME)
        partition_data = response.responses[0].partitions[0]
        data = cast(Buffer | None, partition_data.records)
        records = records_of(data) if data else []
        return partition_data, [record for record in records if record.offset >= offset]

    async def find_coordinator(self, group: str) -> Coordinator:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        response = await self.ask(request, FindCoordinatorResponse)
        return response.coordinators[0]


def records_of(data: Buffer) -> list[Record]:
    """Decode the records of every whole batch. Raises BrokenProtocol for a wrong checksum, as a consumer does."""
    records: list[Record] = []
    for header in batches_in(data):
        if not header.crc_ok():
            raise BrokenProtocol(f"the checksum of the batch at offset {header.base_offset} is wrong")
        records += decode_records(data, header.position)
    return records
