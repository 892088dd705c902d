"""Protobuf messages, decoded and encoded by Google's protobuf package.

The descriptors of the message travel with the query, so workers need no generated modules.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_tidelog.errors import OptionError, SchemaError
from pyspark_tidelog.formats.arrow_rows import (
    Record,
    UndecodableValue,
    decode_column,
    encode_column,
    refuse_missing_package,
)
from pyspark_tidelog.formats.base import Format
from pyspark_tidelog.formats.written_columns import check_columns, check_names

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

HEADER_BYTES = 5
VARINT_BYTES_MAX = 5
"""Upper bound on the bytes of one number in Confluent's header: the number of message indexes, or an index."""


class ProtobufFormat(Format):
    def __init__(self, message: Any, descriptors: str | Path | bytes | None = None, *, header: bool = False) -> None:
        refuse_missing_package("google.protobuf", "protobuf")
        if isinstance(message, str):
            if descriptors is None:
                raise OptionError(
                    "format protobuf: the argument descriptors is missing: "
                    f"pass a file descriptor set that contains {message}"
                )
            self._name, self._descriptors = message, _descriptor_set(descriptors)
        elif hasattr(message, "DESCRIPTOR"):
            self._name, self._descriptors = message.DESCRIPTOR.full_name, _descriptors_of_class(message)
        else:
            raise OptionError(f"format protobuf: {message!r} is neither a generated class nor the name of a message")
        self._has_header = header

    def describe(self) -> str:
        return "protobuf"

    @cached_property
    def schema(self) -> "StructType":
        return self._codec().columns

    def written_names(self, columns: "StructType") -> list[str]:
        self._codec().check(columns)
        return list(columns.names)

    def decode(self, value: "Column") -> "Column":
        return decode_column(value, self._codec(), self.schema)

    def encode(self, record: "Column") -> "Column":
        if self._has_header:
            raise OptionError("format protobuf does not write the header of a schema registry")
        return encode_column(record, self._codec())

    def _codec(self) -> "ProtobufCodec":
        return ProtobufCodec(self._name, self._descriptors, self._has_header)


class ProtobufCodec:
    """Decodes and encodes single values. The message's class is not pickled, but built again in each worker."""

    def __init__(self, name: str, descriptors: bytes, has_header: bool) -> None:
        self._name = name
        self._descriptors = descriptors
        self._has_header = has_header

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("message_class", "columns")}

    @cached_property
    def message_class(self) -> Any:
        from google.protobuf import message_factory

        pool = _pool_of(self._descriptors)
        try:
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(self._name))
        except KeyError:
            raise OptionError(f"format protobuf: the descriptors have no message {self._name}") from None

    @cached_property
    def columns(self) -> "StructType":
        from pyspark_tidelog.formats.protobuf_schema import columns_of_message

        return columns_of_message(self.message_class.DESCRIPTOR)

    def check(self, columns: "StructType") -> None:
        check_columns(columns, self.columns)

    def decode(self, value: bytes) -> Record:
        from google.protobuf.message import DecodeError

        from pyspark_tidelog.formats.protobuf_schema import record_of_message

        payload = value[self._header_end(value) :] if self._has_header else value
        try:
            message = self.message_class.FromString(payload)
        except DecodeError as error:
            raise UndecodableValue(f"the value is not a message {self._name}: {error}") from None
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise UndecodableValue(f"the message {self._name} has no value for required fields: {missing}")
        try:
            return record_of_message(message)
        except (OverflowError, ValueError) as error:  # a Timestamp outside the years 1 to 9999
            raise UndecodableValue(f"a value of the message {self._name} is out of range: {error}") from None

    def encode(self, record: Record) -> bytes:
        from google.protobuf.message import EncodeError

        from pyspark_tidelog.formats.protobuf_schema import fill_message

        message = self.message_class()
        check_names(list(record), self.columns.names, ())
        try:
            fill_message(message, record)
            encoded: bytes = message.SerializeToString()
        except (EncodeError, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"a row does not fit the message {self._name}, so it is not written: {error}") from error
        return encoded

    def _header_end(self, value: bytes) -> int:
        """Return the size of Confluent's header: a zero byte, four bytes of id, and the indexes of the message.

        The indexes are the path to the message in its file. Raises UndecodableValue if they name another message.
        """
        if len(value) <= HEADER_BYTES or value[0] != 0:
            raise UndecodableValue("the value does not begin with the header of a schema registry")
        count, at = _zigzag(value, HEADER_BYTES)
        if count < 0:
            raise UndecodableValue("the header of the value is not valid: it has a negative number of indexes")
        path = []
        for _ in range(min(count, len(value))):
            index, at = _zigzag(value, at)
            path.append(index)
        if (path or [0]) != list(_indexes(self.message_class.DESCRIPTOR)):
            raise UndecodableValue(f"the header names another message than {self._name}")
        return at


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    """Decode the zigzag varint at position `at`. Return the decoded number, and the position after the varint."""
    number = 0
    for i in range(VARINT_BYTES_MAX):
        if at + i >= len(value):
            break
        number |= (value[at + i] & 0x7F) << 7 * i
        if value[at + i] < 0x80:
            return (number >> 1) ^ -(number & 1), at + i + 1
    raise UndecodableValue("the header of the value is not complete")


def _indexes(descriptor: Any) -> Iterator[int]:
    """Yield the path of a message: the indexes of the outer messages, then its own index."""
    outer = descriptor.containing_type
    if outer is not None:
        yield from _indexes(outer)
        yield [nested.name for nested in outer.nested_types].index(descriptor.name)
    else:
        yield list(descriptor.file.message_types_by_name).index(descriptor.name)


def _pool_of(descriptors: bytes) -> Any:
    """Return a pool with the files of a file descriptor set. Raises OptionError if the set lacks an imported file."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    files = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file}
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        if name not in files:
            raise OptionError(
                f"format protobuf: the descriptors lack the imported file {name}: protoc --include_imports adds it"
            )
        for imported in files[name].dependency:
            add(imported)
        try:
            pool.Add(files[name])
        except TypeError as error:
            raise OptionError(f"format protobuf: the descriptors are not valid: {error}") from None

    for name in files:
        add(name)
    return pool


def _descriptors_of_class(message: Any) -> bytes:
    """Return the file descriptor set of a generated class, with each file after the files that it imports."""
    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet()
    seen: set[str] = set()

    def add(file: Any) -> None:
        if file.name in seen:
            return
        seen.add(file.name)
        for imported in file.dependencies:
            add(imported)
        file.CopyToProto(files.file.add())

    add(message.DESCRIPTOR.file)
    encoded: bytes = files.SerializeToString()
    return encoded


def _descriptor_set(descriptors: str | Path | bytes) -> bytes:
    """Return the bytes of a file descriptor set. Raises OptionError if `descriptors` is neither such a set nor the path
    of one.
    """
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    if not isinstance(descriptors, bytes):
        try:
            descriptors = Path(descriptors).read_bytes()
        except OSError as error:
            raise OptionError(f"format protobuf: the descriptors cannot be read: {error}") from None
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    except DecodeError:
        files = descriptor_pb2.FileDescriptorSet()
    if not files.file:
        raise OptionError(
            "format protobuf: the argument descriptors is not a file descriptor set: "
            "protoc --include_imports --descriptor_set_out=FILE writes one"
        )
    return descriptors
