"""Check batches from a leader before a follower writes them unchanged."""

from collections.abc import Iterator

from tidelog.log.batch_scan import ATTRIBUTES, BASE_OFFSET, CRC, HEADER, LAST_OFFSET_DELTA, LENGTH, Fields, defect
from tidelog.log.replay import end_marker
from tidelog.wire.batches import CONTROL_BIT, HEADER_BYTES, LENGTH_END
from tidelog.wire.checksums import crc32c
from tidelog.wire.errors import CorruptMessage


def checked_batches(data: memoryview, next_offset: int) -> Iterator[tuple[memoryview, Fields]]:
    """Yield each batch of `data` with its header.

    Raises CorruptMessage for the first batch that is incomplete or damaged, or whose base offset is below
    `next_offset` or below the end of the previous batch.
    """
    position = 0
    while position < len(data):
        if len(data) - position < HEADER_BYTES:
            raise CorruptMessage(f"{len(data) - position} bytes are left over, a batch needs {HEADER_BYTES}")
        fields: Fields = HEADER.unpack_from(data, position)
        problem = defect(fields, len(data) - position, next_offset, 1 << 63)
        batch = data[position : position + fields[LENGTH] + LENGTH_END]
        if problem is None and crc32c(batch[21:]) != fields[CRC]:  # the CRC covers all bytes after its own field
            problem = f"the batch's CRC-32C is not the stated {fields[CRC]:#010x}"
        if problem is None and fields[ATTRIBUTES] & CONTROL_BIT:
            try:
                end_marker(batch)
            except ValueError as error:
                problem = f"the control batch cannot be decoded: {error}"
        if problem is not None:
            raise CorruptMessage(f"at offset {next_offset}: {problem}")
        yield batch, fields
        position += len(batch)
        next_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
