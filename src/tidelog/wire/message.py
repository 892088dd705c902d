"""Base classes of the generated messages: codecs that are built at first use, equality, a readable form."""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from tidelog.wire.primitives import Buffer

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Piece

    RecordData: TypeAlias = Piece | list[Piece]
    """The value of a field of type `records`. In a message to send, it is one piece or a list of pieces, and only
    `encode` copies the pieces. In a decoded message, it is one `memoryview`."""

NEVER_FLEXIBLE = 32767
"""`flexible_from` of a message without flexible versions."""

UNSET: Any = object()
"""Default value of constructor arguments for which None means null. UNSET means an empty list, or a struct with default
values."""

Decoder: TypeAlias = Callable[[Buffer, int], tuple[Any, int]]
Encoder: TypeAlias = Callable[[Any], bytes]
PiecesEncoder: TypeAlias = "Callable[[Any], list[Piece]]"
StepwiseDecoder: TypeAlias = Callable[[Buffer, int], Generator[None, None, tuple[Any, int]]]
StepwiseEncoder: TypeAlias = "Callable[[Any], Generator[None, None, list[Piece]]]"


def records_bytes(records: Any) -> int:
    """Return the size in bytes of record data, which is a buffer, a file region, or a list of them."""
    if isinstance(records, bytes | bytearray):
        return len(records)
    if isinstance(records, memoryview):
        return records.nbytes
    if isinstance(records, list):
        return sum(map(records_bytes, records))
    size: int = records.size
    return size


class Struct:
    """A message or a part of a message. Its attributes are the fields of all versions, with Kafka's default values.

    If a field is a tagged struct that is never null on the wire, its attribute may be None. None means a struct with
    default values, which is omitted on the wire.
    """

    __slots__ = ()
    FIELDS: ClassVar[str] = ""
    """One line for each field; see `tidelog.wire.fields`."""

    def _names(self) -> tuple[str, ...]:
        return self.__slots__

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._names())

    def __repr__(self) -> str:
        """Return a text for tests and debugging. A uuid is shown in hexadecimal. For other byte fields only the size
        is shown, because they may contain secrets or user data.
        """
        values = ", ".join(f"{name}={_value_text(name, getattr(self, name))}" for name in self._names())
        return f"{type(self).__name__}({values})"


def _value_text(name: str, value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value_text(name, item) for item in value)}]"
    if not isinstance(value, bytes | bytearray | memoryview):
        return repr(value)
    if len(value) == 16 and name.endswith(("_id", "_ids")):
        return bytes(value).hex()
    return f"<{len(value)} bytes>"


class Message(Struct):
    """A request, a response, or a record of an internal topic.

    `min_version` and `max_version` are the oldest and the newest stable version of the schema. `flexible_from` is
    the first version with compact lengths and tagged fields (KIP-482). `api_key` is the API's key, or the type of a
    record. It is -1 for a record without a type.
    """

    __slots__ = ()
    api_key: ClassVar[int] = -1
    name: ClassVar[str] = ""
    min_version: ClassVar[int] = 0
    max_version: ClassVar[int] = 0
    flexible_from: ClassVar[int] = NEVER_FLEXIBLE
    _decoders: ClassVar[dict[int, Decoder]]
    _encoders: ClassVar[dict[int, Encoder]]
    _pieces_encoders: ClassVar[dict[int, PiecesEncoder]]

    def __init_subclass__(cls) -> None:
        cls._decoders = {}
        cls._encoders = {}
        cls._pieces_encoders = {}

    @classmethod
    def decode(cls, buffer: Buffer, position: int, version: int) -> tuple[Self, int]:
        """Decode the message at `position`. Return the message and the position after it.

        Unknown tagged fields are skipped. Fields of type `records` are views of `buffer`; all other fields are
        copied. As in Kafka, any negative length of a nullable field means null. Raises MalformedMessage or
        VersionNotInMessage.
        """
        try:
            decoder = cls._decoders[version]
        except KeyError:
            decoder = cls.decoder(version)
        return decoder(buffer, position)

    def encode(self, version: int) -> bytes:
        """Encode the message into bytes. Record data must be in memory: only `pieces_encoder` and `stepwise_encoder`
        accept file regions.

        Raises FieldNotInVersion, UnencodableValue, VersionNotInMessage, or UnicodeEncodeError for a string with lone
        surrogates.
        """
        try:
            encoder = self._encoders[version]
        except KeyError:
            encoder = self.encoder(version)
        return encoder(self)

    @classmethod
    def decoder(cls, version: int) -> Decoder:
        """Return the function that `decode` calls for one version. Code that must be fast stores this function and
        calls it directly.
        """
        if version not in cls._decoders:
            from tidelog.wire.decoding import build_decoder

            cls._decoders[version] = build_decoder(cls, version)
        return cls._decoders[version]

    @classmethod
    def stepwise_decoder(cls, version: int) -> StepwiseDecoder:
        """Return a generator function that decodes one version like `decode`, but yields between short steps. It is
        meant for long messages.
        """
        from tidelog.wire.decoding import build_stepwise_decoder

        return build_stepwise_decoder(cls, version)

    @classmethod
    def stepwise_encoder(cls, version: int) -> StepwiseEncoder:
        """Return a generator function that encodes one version like `pieces_encoder`, but yields between short
        steps. The result may have more pieces than with `pieces_encoder`.
        """
        from tidelog.wire.encoding import build_stepwise_encoder

        return build_stepwise_encoder(cls, version)

    @classmethod
    def encoder(cls, version: int) -> Encoder:
        """Return the function that `encode` calls for one version. Code that must be fast stores this function and
        calls it directly.
        """
        if version not in cls._encoders:
            cls._build_encoders(version)
        return cls._encoders[version]

    @classmethod
    def pieces_encoder(cls, version: int) -> PiecesEncoder:
        """Return the function that encodes a message of one version into pieces.

        Record data is not copied: its pieces are returned as they are. The first piece is always `bytes`.
        """
        if version not in cls._pieces_encoders:
            cls._build_encoders(version)
        return cls._pieces_encoders[version]

    @classmethod
    def _build_encoders(cls, version: int) -> None:
        from tidelog.wire.encoding import build_encoders

        cls._encoders[version], cls._pieces_encoders[version] = build_encoders(cls, version)
