"""Write the markers that end transactions, on the brokers that lead the transactions' partitions.

After the end of a transaction was decided, its markers are never given up: markers that cannot be written are tried
again until the coordinator's leader epoch ends. The next coordinator then finds the decision in its log, and begins
again.

A partition that knows a higher epoch of the producer, or of the coordinator, refuses the marker permanently. The
marker then counts as written. Either the transaction is no longer open in the partition, or another coordinator has
taken over. In the second case, this coordinator cannot commit records any more, so it can safely consider the marker
to be written. Kafka instead stops writing the transaction's markers. The transaction then remains in its PREPARE state
until another broker becomes the coordinator.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidelog.client.errors import ApiNotSupported, BrokenProtocol, BrokerUnreachable
from tidelog.coordinator.transaction.markers import MarkersToWrite
from tidelog.model.ids import indexes_by_topic
from tidelog.runtime.log_limit import LogLimit
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    import asyncio

    from tidelog.coordinator.runtime import CoordinatorPartition
    from tidelog.coordinator.transaction.records import Partition
    from tidelog.metadata.broker_channels import BrokerChannels
    from tidelog.metadata.image import MetadataImage
    from tidelog.metadata.publisher import MetadataCache
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.coordinator")

RETRY_DELAY_S = 0.1
"""Pause, in seconds, after which unwritten markers are sent again."""
PARTITIONS_PER_REQUEST_MAX = 2_000
"""Upper bound on the partitions in one request. A transaction with more partitions gets a request of its own."""
NO_LEADER = -1
SUPERSEDED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
"""Errors with which a partition refuses a marker permanently. See the docstring of this module."""
WRITTEN = (ErrorCode.NONE, *SUPERSEDED)

WriteLocally = Callable[[WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]


class _Work:
    """The markers of one transaction that are being written for its coordinator.

    A `_Work` is hashed by its identity, because `_add` looks it up once for each partition of the transaction. If each
    look-up computed a hash of the markers, it would read all these partitions, and the event loop would be blocked for
    seconds.
    """

    __slots__ = ("coordinator", "core", "markers")

    def __init__(self, coordinator: "CoordinatorPartition[Any]", markers: MarkersToWrite) -> None:
        self.coordinator = coordinator
        self.core: object = coordinator.core
        """The core that has decided the transaction's end, or that has found the decision in the log."""
        self.markers = markers

    @property
    def is_current(self) -> bool:
        """Whether the core is still in use. If another core was loaded in the meantime, that core has begun to write
        the same markers, and this work must not continue. Otherwise a marker could be sent after the transaction is
        complete. With transaction version 1, the producer's next transaction has the same epoch, so the marker would
        end this next transaction.
        """
        coordinator = self.coordinator
        return coordinator.is_open and coordinator.is_loaded and coordinator.core is self.core


class MarkerWriter:
    """Writes markers. Each broker gets one request at a time. The request contains the markers that wait for this
    broker, up to PARTITIONS_PER_REQUEST_MAX.
    """

    def __init__(
        self,
        runtime: "Runtime",
        node_id: int,
        metadata: "MetadataCache",
        write_locally: WriteLocally,
        channels: "BrokerChannels | None",
    ) -> None:
        """`write_locally` appends markers to partitions that this broker leads. `channels` are the connections to the
        other brokers; None if there are no other brokers.
        """
        self._tasks = runtime.tasks
        self._node_id = node_id
        self._metadata = metadata
        self._write_locally = write_locally
        self._channels = channels
        self._waiting: dict[int, dict[_Work, dict[Partition, None]]] = {}
        """For each broker, the markers that must still be sent to it."""
        self._senders: dict[int, asyncio.Task[None]] = {}
        """For each broker with markers, the task that sends them."""
        self._is_closed = False
        # A broker may be down for hours, and each transaction of a broken client may be refused. Without these limits,
        # every attempt and every refusal would be logged.
        self._failure_lines = LogLimit(runtime.clock.monotonic)
        self._error_lines = LogLimit(runtime.clock.monotonic)
        self._refusal_lines = LogLimit(runtime.clock.monotonic)

    def begin(self, coordinator: "CoordinatorPartition[Any]", markers: MarkersToWrite) -> None:
        """Begin to write the markers. The coordinator's core is informed of each written marker."""
        if not coordinator.is_loaded:
            return  # its log has failed; the next coordinator begins again
        work = _Work(coordinator, markers)
        if markers.partitions:
            self._add(work, markers.partitions)
        else:  # no marker is needed: the core must learn at once that the transaction is complete
            self._report(work, ())

    def close(self) -> None:
        """Stop. The next coordinators write the missing markers."""
        self._is_closed = True
        for sender in self._senders.values():
            sender.cancel()
        if self._channels is not None:
            self._channels.close()

    def _add(self, work: _Work, partitions: "Iterable[Partition]") -> None:
        """Let the present leaders of the partitions write the markers. In a partition that was deleted, the marker
        counts as written.
        """
        if self._is_closed or not work.is_current:
            return
        image = self._metadata.newest
        deleted: list[Partition] = []
        without_leader: list[Partition] = []
        for partition in partitions:
            leader = _leader(image, partition)
            if leader is None:
                deleted.append(partition)
            elif leader == NO_LEADER:
                without_leader.append(partition)
            else:
                self._waiting.setdefault(leader, {}).setdefault(work, {})[partition] = None
                if leader not in self._senders:
                    self._senders[leader] = self._tasks.spawn(self._send_all(leader), name=f"markers-{leader}")
        if without_leader:
            self._add_later(work, without_leader)
        if deleted:
            self._report(work, deleted)

    def _add_later(self, work: _Work, partitions: "Iterable[Partition]") -> None:
        """After a pause, add the markers again, for the brokers that lead the partitions at that time. Markers of other
        transactions do not wait for this pause.
        """
        self._tasks.call_later(RETRY_DELAY_S, self._add, work, partitions)

    async def _send_all(self, broker_id: int) -> None:
        """Send the markers that wait for this broker, until there are none. If the broker does not answer, it gets its
        next request after a pause. The unanswered markers are then sent to the brokers that lead the partitions at
        that time.
        """
        waiting = self._waiting[broker_id]
        try:
            while waiting:
                batch = _take_some(waiting)
                try:
                    await self._send(broker_id, batch)
                except (BrokerUnreachable, BrokenProtocol, ApiNotSupported) as error:
                    if self._failure_lines.admits_line():
                        logger.info("markers not written, trying again broker=%d reason=%s", broker_id, error)
                except Exception:
                    if self._error_lines.admits_line():
                        logger.exception("markers not written, trying again broker=%d", broker_id)
                if batch:
                    await self._tasks.sleep(RETRY_DELAY_S)
                    for work, partitions in batch.items():
                        self._add(work, partitions)
        finally:
            del self._senders[broker_id]

    async def _send(self, broker_id: int, batch: "dict[_Work, dict[Partition, None]]") -> None:
        """Send one request, and remove from `batch` the markers that the broker has answered. The caller must send
        again the markers that remain in `batch`, even after an exception.
        """
        for work in [work for work in batch if not work.is_current]:
            del batch[work]
        if not batch:
            return
        request = WriteTxnMarkersRequest([_marker(work, partitions) for work, partitions in batch.items()])
        if broker_id == self._node_id:
            response = await self._write_locally(request)
        else:
            broker = self._metadata.newest.brokers.get(broker_id)
            if broker is None or self._channels is None:
                return
            response = await self._channels.ask(broker, request, WriteTxnMarkersResponse)
        if [result.producer_id for result in response.markers] != [work.markers.producer_id for work in batch]:
            raise BrokenProtocol("the response has other markers than the request")
        for work, result in zip(list(batch), response.markers, strict=True):
            codes = {
                (topic.name, partition.partition_index): partition.error_code
                for topic in result.topics
                for partition in topic.partitions
            }
            partitions = batch[work]
            refused_count = sum(1 for partition in partitions if codes.get(partition) in SUPERSEDED)
            if refused_count and self._refusal_lines.admits_line():
                logger.warning(
                    "markers refused, since a partition knows a higher epoch transactional_id=%s partitions=%d",
                    work.markers.transactional_id,
                    refused_count,
                )
            self._report(work, [partition for partition in partitions if codes.get(partition) in WRITTEN])
            del batch[work]
            repeated = [partition for partition in partitions if codes.get(partition) not in WRITTEN]
            if repeated:
                self._add_later(work, repeated)

    def _report(self, work: _Work, partitions: "Iterable[Partition]") -> None:
        """Inform the coordinator's core that these markers are written."""
        if work.is_current:
            coordinator = work.coordinator
            coordinator.apply(coordinator.core.markers_written(work.markers, partitions, coordinator.now()))


def _leader(image: "MetadataImage", partition: "Partition") -> int | None:
    """Return the broker that leads the partition. Return NO_LEADER if there is no leader or the leader is fenced, and
    None for a partition that was deleted.
    """
    name, index = partition
    topic = image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return None
    leader = topic.partitions[index].leader
    broker = image.brokers.get(leader)
    return NO_LEADER if broker is None or broker.fenced else leader


def _take_some(waiting: "dict[_Work, dict[Partition, None]]") -> "dict[_Work, dict[Partition, None]]":
    """Remove the markers of the next request from `waiting` and return them."""
    batch: dict[_Work, dict[Partition, None]] = {}
    free = PARTITIONS_PER_REQUEST_MAX
    for work in list(islice(waiting, PARTITIONS_PER_REQUEST_MAX)):
        free -= len(waiting[work])
        if batch and free < 0:
            break
        batch[work] = waiting.pop(work)
    return batch


def _marker(work: _Work, partitions: "Iterable[Partition]") -> WritableTxnMarker:
    markers = work.markers
    return WritableTxnMarker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        transaction_result=markers.is_commit,
        topics=[WritableTxnMarkerTopic(topic, indexes) for topic, indexes in indexes_by_topic(partitions).items()],
        coordinator_epoch=work.coordinator.leader_epoch,
        transaction_version=markers.version,
    )
