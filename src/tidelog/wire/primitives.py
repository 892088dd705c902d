"""Variable-length integers, and the exceptions of decoding and encoding.

Unsigned varints have seven bits of the value in each byte, the lowest bits first (KIP-482). Signed varints (record
batches, KIP-98) are the unsigned varints of the zigzag-coded value.
"""

from collections.abc import Generator
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

NO_UUID = bytes(16)
"""The default of uuid fields."""
SKIPPED_PER_STEP = 64
"""Number of unknown tagged fields that a stepwise decoder skips between two yields. It must be below 128, because
`skip_tagged_fields` interprets a larger count as the first byte of a varint."""


class MalformedMessage(ValueError):
    """The bytes are not a valid message, for example cut short, with an impossible length, or with invalid UTF-8."""


def wrong_record_length(length: int, bytes_left: int) -> MalformedMessage:
    """Return the error for a record whose length field contains `length`. Either the batch has only `bytes_left`
    bytes left, or `length` is too small for the fields of a record.
    """
    reason = f"but {bytes_left} are left" if length > bytes_left else "which are too few"
    return MalformedMessage(f"record batch: a record states {length} bytes, {reason}")


class FieldNotInVersion(ValueError):
    """This version of the message has no such field. The field's value is not the default, and must not be dropped
    silently.
    """

    def __init__(self, struct: str, field: str, version: int) -> None:
        super().__init__(f"{struct}.{field} is not in version {version} and does not hold its default")


class TooLargeDecompressed(MalformedMessage):
    """The decompressed data would be larger than the limit, or the compressed data has more members, frames, chunks or
    blocks than the limit allows.
    """


class BrokenStream(MalformedMessage):
    """Compressed data is damaged or incomplete. `before` contains the decompressed bytes before the damage."""

    def __init__(self, message: str, before: bytes) -> None:
        super().__init__(message)
        self.before = before


class UnencodableValue(ValueError):
    """The value does not fit its field: the integer is out of range, or the string is too long for its length field."""


class VersionNotInMessage(ValueError):
    """The message has no such version."""


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read the unsigned varint at `position`. Return its value and the position after it.

    Raises IndexError if the varint is cut short, and MalformedMessage if it does not fit in 32 bits.
    """
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    return finish_uvarint(buffer, position + 1, byte)


def finish_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint. `first` is the varint's first byte and is 128 or more. The rest begins at
    `position`. See `read_uvarint`.
    """
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise MalformedMessage("an unsigned varint that does not fit in 32 bits")


def uvarint(value: int) -> bytes:
    """Encode 0 <= value < 2**32."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a zigzag varint of 32 bits. Return its value and the position after it.

    Raises IndexError if the varint is cut short, and MalformedMessage if it is too long.
    """
    byte = buffer[position]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), position + 1
    second = buffer[position + 1]
    if second < 0x80:
        return byte >> 1 & 0x3F ^ -(byte & 1) ^ second << 6, position + 2
    return _read_zigzag(buffer, position, 32)


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a zigzag varint of 64 bits; see `read_varint`."""
    byte = buffer[position]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), position + 1
    return _read_zigzag(buffer, position, 64)


def _read_zigzag(buffer: Buffer, position: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise MalformedMessage(f"a varint that does not fit in {bits} bits")
    if value >> bits:
        raise MalformedMessage(f"a varint that does not fit in {bits} bits")
    return value >> 1 ^ -(value & 1), position


def varint(value: int) -> bytes:
    """Zigzag encode a signed integer of up to 64 bits."""
    value = value << 1 ^ value >> 63
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def skip_tagged_fields(buffer: Buffer, position: int, count: int) -> int:
    """Return the position after `count` tagged fields. The caller must check it, because it may be beyond the
    buffer.

    A `count` of 128 or more is the first byte of a longer varint, and the rest of this varint is at `position`.
    Raises the same errors as `read_uvarint`.
    """
    if count > 0x7F:
        count, position = finish_uvarint(buffer, position, count)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
    return position


def skip_tagged_fields_in_steps(buffer: Buffer, position: int, count: int) -> Generator[None, None, int]:
    """Skip tagged fields in steps, because a peer may send millions of them; see `skip_tagged_fields`."""
    if count > 0x7F:
        count, position = finish_uvarint(buffer, position, count)
    while count > SKIPPED_PER_STEP:
        position = skip_tagged_fields(buffer, position, SKIPPED_PER_STEP)
        count -= SKIPPED_PER_STEP
        yield
    return skip_tagged_fields(buffer, position, count)
