"""A fast path for Produce requests with one batch for one partition, which most clients send.

Two such requests of one client differ only in the correlation id and the batch. The meaning of the other bytes, and
the encoded response to a success, are computed once by the message codecs and kept as a template: decoding and
encoding take more time than the rest of a small request. A request whose batch cannot be appended directly, or that
is in error, is left to `produce.handle`.
"""

from struct import Struct

from tidelog.api.pending import Pending
from tidelog.api.produce import acknowledgement, refuse
from tidelog.api.services import Services
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
"""Older versions refuse a codec and have a shorter response; clients no longer send them."""
BEGINNING_AT = 8
"""Position behind API key, version and correlation id."""
BEGINNING_BYTES_MAX = 512
KNOWN_MAX = 4096
"""Most templates of one version. Beyond that, all are dropped and learnt again."""

_LENGTH = Struct(">i")
_OFFSETS = Struct(">qqq")
_PLACES = (-0x6B1D_0A5E_77C3_19F2, -0x1F4C_D392_60AB_8E57, -0x3E92_41D7_5C08_B6AD)
"""Placeholders for base offset, append time and log start offset in a template: bytes that no topic name contains."""


class _Single:
    """The meaning of the first bytes of a request."""

    __slots__ = ("_after", "_before", "_pack", "by_id", "index", "request", "topic")

    def __init__(self, request: ProduceRequest, version: int) -> None:
        [topic] = request.topic_data
        self.by_id = version >= 13
        self.topic = (topic.name, topic.topic_id)
        self.index = topic.partition_data[0].index
        self.request = ProduceRequest(acks=request.acks, timeout_ms=request.timeout_ms)
        template = self.response(PartitionProduceResponse(self.index, 0, *_PLACES))
        self._before, self._after = template.encode(version).split(_OFFSETS.pack(*_PLACES))
        self._pack = Struct(f">{len(self._before)}sqqq{len(self._after)}s").pack

    def response(self, answer: PartitionProduceResponse) -> ProduceResponse:
        return ProduceResponse([TopicProduceResponse(*self.topic, [answer])])

    def success(self, base_offset: int, append_time_ms: int, log_start_offset: int) -> bytes:
        """Return the encoded response to a success."""
        return self._pack(self._before, base_offset, append_time_ms, log_start_offset, self._after)


class Singles:
    """The known requests of one version. They are independent of a broker."""

    __slots__ = ("_end", "_flexible", "_known", "_version")

    def __init__(self, version: int) -> None:
        self._version = version
        self._flexible = version >= ProduceRequest.flexible_from
        self._end = bytes(3 if self._flexible else 0)
        """The bytes behind the batch: no tagged fields of partition, topic and request."""
        self._known: dict[bytes, _Single] = {}

    def learn(self, frame: memoryview, request: ProduceRequest) -> int:
        """Learn requests like this one. Returns the position in `frame` where their beginning ends, or 0 if it is
        not of this kind.
        """
        if request.acks not in (1, -1) or request.transactional_id is not None or len(request.topic_data) != 1:
            return 0
        data = request.topic_data[0].partition_data
        records: memoryview | None = data[0].records if len(data) == 1 else None  # type: ignore[assignment]  # decoded
        if not records:
            return 0
        size = len(records)
        beginning_end = len(frame) - len(self._end) - size - self._length_bytes(size)
        if beginning_end > BEGINNING_AT + BEGINNING_BYTES_MAX or self._records(frame, beginning_end) is None:
            return 0
        beginning = bytes(frame[BEGINNING_AT:beginning_end])
        if beginning not in self._known:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[beginning] = _Single(request, self._version)
        return beginning_end

    def _length_bytes(self, size: int) -> int:
        return max((size + 1).bit_length() + 6, 7) // 7 if self._flexible else _LENGTH.size

    def _records(self, frame: memoryview, position: int) -> memoryview | None:
        """Return the records field at `position`, if only `_end` follows it."""
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
        self, services: Services, frame: memoryview, beginning_end: int
    ) -> bytes | Pending[ProduceResponse] | None:
        """Handle a request whose first bytes, up to `beginning_end`, may be known. Returns the encoded response.

        Returns None, and has done nothing, if they are not known or if `produce.handle` has to answer.
        """
        single = self._known.get(bytes(frame[BEGINNING_AT:beginning_end]))
        if single is None:
            return None
        records = self._records(frame, beginning_end)
        if not records:
            return None
        partitions = services.partitions
        try:
            topic = partitions.topic_name(single.topic[1]) if single.by_id else single.topic[0]
            partition = partitions.find(topic, single.index)
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
        except ApiError as error:  # no second attempt, since offsets were written into the batch
            answer = PartitionProduceResponse(single.index)
            refuse(answer, partition, error)
            return single.response(answer).encode(self._version)
        finally:
            partitions.wake_fetches()
        if partition.high_watermark >= next_offset:
            return single.success(base_offset, append_time_ms, log_start_offset)
        answer = PartitionProduceResponse(single.index, 0, base_offset, append_time_ms, log_start_offset)
        waiting = [(partition, next_offset, answer)]
        return acknowledgement(services, waiting, [], single.request, single.response(answer))
