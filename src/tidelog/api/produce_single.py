"""A fast path for Produce requests with one batch for one partition, which most clients send.

Such requests of one client for the same partition differ only in the correlation id, the length of the batch, and the
batch. The prefix is the part of a request between the correlation id and the length of the batch. Decoding the prefix
and encoding the response take more time than the rest of a small request. Therefore each prefix is decoded only once,
and the response to a successful request is encoded only once. Both are stored as a template. If a batch is invalid or
cannot be appended directly, `produce.handle` handles its request.
"""

from struct import Struct

from tidelog.api.leader_hints import PRODUCE_SINCE
from tidelog.api.pending import Pending
from tidelog.api.produce import acknowledgement, mark_of, set_error
from tidelog.api.services import Peer, Services
from tidelog.log.validation import NotInline
from tidelog.wire.batches import check_produced
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.wire.primitives import MalformedMessage, finish_uvarint

SINCE_VERSION = 7
"""The first version with this fast path. Older versions do not support all codecs, and some of them have a shorter
response. Current clients do not send older versions."""
PREFIX_POSITION = 8
"""Start of the prefix in a request: the position after API key, version and correlation id."""
PREFIX_BYTES_MAX = 512
TEMPLATES_MAX = 4096
"""Upper bound on the templates of one version. When the number is reached, all templates are dropped and learned
again."""

_LENGTH = Struct(">i")
_OFFSETS = Struct(">qqq")
_PLACEHOLDERS = (-0x6B1D_0A5E_77C3_19F2, -0x1F4C_D392_60AB_8E57, -0x3E92_41D7_5C08_B6AD)
"""Placeholders for base offset, append time and log start offset in an encoded response. No topic name contains the
bytes of these numbers."""


class _Template:
    """The decoded prefix of requests, and the encoded response to each such request that succeeds."""

    __slots__ = ("_bytes_after", "_bytes_before", "_pack", "by_id", "index", "request", "topic")

    def __init__(self, request: ProduceRequest, version: int) -> None:
        [topic] = request.topic_data
        self.by_id = version >= 13
        self.topic = (topic.name, topic.topic_id)
        self.index = topic.partition_data[0].index
        self.request = ProduceRequest(acks=request.acks, timeout_ms=request.timeout_ms)
        response = self.response(PartitionProduceResponse(self.index, 0, *_PLACEHOLDERS))
        self._bytes_before, self._bytes_after = response.encode(version).split(_OFFSETS.pack(*_PLACEHOLDERS))
        self._pack = Struct(f">{len(self._bytes_before)}sqqq{len(self._bytes_after)}s").pack

    def response(self, answer: PartitionProduceResponse) -> ProduceResponse:
        return ProduceResponse([TopicProduceResponse(*self.topic, [answer])])

    def success(self, base_offset: int, append_time_ms: int, log_start_offset: int) -> bytes:
        """Return the encoded response to a request that has succeeded."""
        return self._pack(self._bytes_before, base_offset, append_time_ms, log_start_offset, self._bytes_after)


class ProduceTemplates:
    """The templates of one version, by prefix. All brokers in a process can share them."""

    __slots__ = ("_end", "_flexible", "_templates", "_version")

    def __init__(self, version: int) -> None:
        self._version = version
        self._flexible = version >= ProduceRequest.flexible_from
        self._end = bytes(3 if self._flexible else 0)
        """The bytes after the batch. They say that partition, topic and request have no tagged fields."""
        self._templates: dict[bytes, _Template] = {}

    def learn(self, frame: memoryview, request: ProduceRequest) -> int:
        """Store a template for requests with the same prefix as this request. Return the position in `frame` where the
        prefix ends, or 0 if the fast path cannot handle such requests.
        """
        if request.acks not in (1, -1) or request.transactional_id is not None or len(request.topic_data) != 1:
            return 0
        data = request.topic_data[0].partition_data
        records: memoryview | None = data[0].records if len(data) == 1 else None  # type: ignore[assignment]  # decoded
        if not records:
            return 0
        size = len(records)
        prefix_end = len(frame) - len(self._end) - size - self._length_bytes(size)
        if prefix_end > PREFIX_POSITION + PREFIX_BYTES_MAX or self._records(frame, prefix_end) is None:
            return 0
        prefix = bytes(frame[PREFIX_POSITION:prefix_end])
        if prefix not in self._templates:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            self._templates[prefix] = _Template(request, self._version)
        return prefix_end

    def _length_bytes(self, size: int) -> int:
        """Return the size of the length field before `size` bytes of records: a varint in flexible versions."""
        return max((size + 1).bit_length() + 6, 7) // 7 if self._flexible else _LENGTH.size

    def _records(self, frame: memoryview, position: int) -> memoryview | None:
        """Return the content of the records field at `position`, or None if it is not followed by exactly `_end`."""
        try:
            if self._flexible:
                length = frame[position]
                position += 1
                if length > 0x7F:
                    length, position = finish_uvarint(frame, position, length)
                end = position + length - 1
                if frame[end:] != self._end:
                    return None
                return frame[position:end]
            if _LENGTH.unpack_from(frame, position)[0] == len(frame) - position - 4:
                return frame[position + 4 :]
        except (IndexError, ValueError, MalformedMessage):
            pass
        return None

    def handle(
        self, services: Services, frame: memoryview, prefix_end: int, peer: Peer
    ) -> bytes | Pending[ProduceResponse] | None:
        """Handle a request of `peer` whose prefix ends at `prefix_end`. Returns the encoded response, or a pending
        response if the batch is not acknowledged yet.

        If there is no template for the prefix, or if `produce.handle` must handle the request, this method appends
        nothing and returns None.
        """
        template = self._templates.get(bytes(frame[PREFIX_POSITION:prefix_end]))
        if template is None:
            return None
        records = self._records(frame, prefix_end)
        if not records:
            return None
        partitions = services.partitions
        try:
            topic = partitions.topic_name(template.topic[1]) if template.by_id else template.topic[0]
            partition = partitions.find(topic, template.index)
            if partition is None or not partition.appends_directly:
                return None
            header = check_produced(records)
        except ApiError:
            return None
        if header.size != len(records):
            return None
        partitions.appending = True
        try:
            base_offset, next_offset, append_time_ms, log_start_offset = partition.append(records, header)
        except NotInline:
            return None
        except ApiError as error:
            # `produce.handle` must not handle the request, because offsets may have been written into the batch.
            answer = PartitionProduceResponse(template.index)
            set_error(answer, partition, error)
            return template.response(answer).encode(self._version)
        finally:
            partitions.wake_fetches()
        if partition.replica.high_watermark >= next_offset or partition.has_reached(
            mark_of(template.request.acks), next_offset
        ):
            return template.success(base_offset, append_time_ms, log_start_offset)
        answer = PartitionProduceResponse(template.index, 0, base_offset, append_time_ms, log_start_offset)
        unacknowledged = [(partition, next_offset, answer)]
        listener = peer.listener if services.followers is not None and self._version >= PRODUCE_SINCE else None
        return acknowledgement(services, unacknowledged, [], template.request, template.response(answer), listener)
