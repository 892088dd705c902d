"""The requests that a mirror sends to one cluster, about topics, their settings, the records of partitions, and the
offsets of these records.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tidelog.client.blocking import Client
from tidelog.client.error_codes import error_name
from tidelog.client.operations import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, THROTTLED, FetchLimits
from tidelog.client.reader import whole_batches
from tidelog.client.visible import visible_batches
from tidelog.model.ids import TopicPartition
from tidelog.pipelines.brokers import CREATE_TIMEOUT_MS, ask_any, ask_controller, create_topic
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.mirror_offsets import Run, joined_runs
from tidelog.wire.batches import BatchHeader
from tidelog.wire.errors import ErrorCode, error_for
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.records import Record, decode_records

TOPIC_RESOURCE = 2
"""Resource type of topics in requests for settings."""
SET_ON_TOPIC = 1
"""Value of `config_source` for a setting that is set on the topic itself."""
OPERATION_SET, OPERATION_DELETE = 0, 1
FETCH = FetchLimits(max_wait_ms=100, isolation=READ_COMMITTED)


class Setting(NamedTuple):
    value: str | None
    is_set: bool
    """Whether the setting is set on the topic itself."""


class MirrorCluster:
    """Sends requests to one cluster. It must be used by one thread only."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def close(self) -> None:
        self.client.close()

    def cluster_id(self) -> str | None:
        return ask_any(self.client, MetadataRequest(topics=[]), MetadataResponse).cluster_id

    def partition_counts(self) -> dict[str, int]:
        """Return the number of partitions of each topic that is not internal."""
        return {name: len(topic.leaders) for name, topic in self.client.all_topics().items() if not topic.internal}

    def create_topic(self, name: str, partitions: int, replicas: int, settings: Mapping[str, str]) -> None:
        """Create a topic; `replicas` of -1 stands for the cluster's default. Do nothing if the topic exists."""
        create_topic(self.client, name, partitions, settings, replicas=replicas)
        self.client.topics([name])  # waits until the brokers know the topic

    def grow_topic(self, name: str, partitions: int) -> None:
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name, partitions, None)], timeout_ms=CREATE_TIMEOUT_MS
        )
        (result,) = ask_controller(self.client, request, CreatePartitionsResponse).results
        _raise_error(result.error_code, result.error_message, f"topic {name} cannot have {partitions} partitions")
        deadline = self.client.deadline()
        while len(self.client.topics([name])[name].leaders) < partitions:
            _wait(deadline, f"topic {name} does not have {partitions} partitions yet")

    def settings(self, topics: Iterable[str]) -> dict[str, dict[str, Setting]]:
        """Return the settings of each topic, by topic and by name of the setting. Deleted topics are omitted."""
        names = list(topics)
        if not names:
            return {}
        resources = [DescribeConfigsResource(TOPIC_RESOURCE, name, None) for name in names]
        request = DescribeConfigsRequest(resources=resources)
        answer = ask_any(self.client, request, DescribeConfigsResponse)
        settings = {}
        for result in answer.results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            _raise_error(
                result.error_code, result.error_message, f"settings of topic {result.resource_name} cannot be read"
            )
            settings[result.resource_name] = {
                entry.name: Setting(entry.value, entry.config_source == SET_ON_TOPIC) for entry in result.configs
            }
        return settings

    def change_settings(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Set each setting in `changes` that has a value, and remove from the topic each setting whose value is None.
        If one change is refused, nothing is changed, and ApiError is raised.
        """
        configs = [
            AlterableConfig(name, OPERATION_DELETE if value is None else OPERATION_SET, value)
            for name, value in changes.items()
        ]
        request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(TOPIC_RESOURCE, topic, configs)])
        (result,) = ask_controller(self.client, request, IncrementalAlterConfigsResponse).responses
        if result.error_code:
            raise error_for(result.error_code, result.error_message or error_name(result.error_code))

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition."""
        return self._offsets(partitions, LATEST)

    def uncommitted_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition."""
        return self._offsets(partitions, LATEST, READ_UNCOMMITTED)

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return self._offsets(partitions, EARLIEST)

    def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation: int = READ_COMMITTED
    ) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, timestamp)
        listed = self.client.list_offsets(wanted, isolation) if wanted else {}
        return {tp: offset.offset for tp, offset in listed.items()}

    def records(self, partition: TopicPartition, begin: int, end: int) -> Iterator[Record]:
        """Yield the committed records with offsets from `begin` to `end` (exclusive).

        Raises PipelineError if the partition ends before `end`.
        """
        for header in self._batches(partition, begin, end):
            for record in decode_records(header.buffer, header.position):
                if begin <= record.offset < end:
                    yield record

    def runs(self, partition: TopicPartition, begin: int, end: int) -> list[Run]:
        """Return the offsets of committed records from `begin` to `end` (exclusive). A batch is decoded only if
        compaction has removed records from it, or if it is partly outside this range.
        """
        runs: list[Run] = []
        for header in self._batches(partition, begin, end):
            is_complete = header.count == header.last_offset - header.base_offset + 1
            if is_complete and begin <= header.base_offset and header.next_offset <= end:
                runs.append(Run(header.base_offset, header.count))
            else:
                records = decode_records(header.buffer, header.position)
                runs += [Run(record.offset, 1) for record in records if begin <= record.offset < end]
        return joined_runs(runs)

    def has_records(self, partition: TopicPartition, begin: int, end: int) -> bool:
        """Return whether a committed record has an offset from `begin` to `end` (exclusive)."""
        return next(self.records(partition, begin, end), None) is not None

    def _batches(self, partition: TopicPartition, begin: int, end: int) -> Iterator[BatchHeader]:
        """Yield the batches of committed records. A batch is valid until the next one is requested."""
        position = begin
        deadline = self.client.deadline()
        while position < end:
            fetched = self.client.fetch(partition, position, FETCH)
            headers, damage = whole_batches(fetched.records, True)
            if damage is not None:
                raise PipelineError(f"{partition} cannot be read from offset {position} on: {damage}")
            if not headers:
                problem = (
                    f"{partition} cannot be read from offset {position} on, because the client is over its fetch quota"
                    if fetched is THROTTLED
                    else f"{partition} has no committed records from offset {position} on, but they are expected up to"
                    f" offset {end}"
                )
                _wait(deadline, problem)
                continue
            for header in visible_batches(headers, fetched, READ_COMMITTED):
                if header.base_offset < end and header.next_offset > begin:
                    yield header
            position = headers[-1].next_offset
            deadline = self.client.deadline()


def _raise_error(code: int, message: str | None, problem: str) -> None:
    if code:
        raise PipelineError(f"{problem}: {message or error_name(code)}") from error_for(code, message or "")


def _wait(deadline: float, problem: str) -> None:
    """Wait before another attempt. Raises PipelineError if `time.monotonic()` is greater than `deadline`."""
    if time.monotonic() > deadline:
        raise PipelineError(problem)
    time.sleep(0.02)
