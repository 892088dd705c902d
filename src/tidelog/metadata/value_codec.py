"""Encode values as bytes according to the type hints of their classes. The values are named tuples of simple values;
pickle is not used.

`codec_for` creates the codec of a type. A type may be bool, int (64 bits), float, str, bytes, None, an enumeration, a
named tuple, a tuple, list, sequence, set or mapping of these types, or a union of them.

The bytes do not contain the types, except the names of the classes of a union. So writer and reader must use the same
types, with one exception: a field with a default may be added at the end of a named tuple. This is possible
because the last fields are not written if they have their default values. An older reader accepts a value whose new
field has its default, and refuses a value whose new field has another value (`UnknownValue`).

The memory that the reader allocates is proportional to the bytes that it has received, and a value is never nested more
deeply than its type.
"""

import collections.abc
import types
from enum import Enum
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NewType, Union, get_args, get_origin, get_type_hints

from tidelog.model.steps import Steps
from tidelog.wire.primitives import Buffer, MalformedMessage, read_uvarint, read_varlong, uvarint, varint

DEPTH_MAX: Final = 16
"""Upper bound on the nesting of types. A type that contains itself exceeds this bound."""
ITEMS_PER_STEP: Final = 64
"""Number of scalar items of a sequence that are written or read in one step."""

_FLOAT = Struct(">d")
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1


class UncodableType(TypeError):
    """A type hint contains a type that cannot be encoded. The error message names the field."""


class UncodableValue(ValueError):
    """A value does not have the type of its hint, or exceeds a limit."""


class MalformedValue(ValueError):
    """The bytes do not encode a value of the expected type."""


class UnknownValue(ValueError):
    """The bytes contain a field, a class or a member of an enumeration that only a newer version of Tidelog knows."""


class ValueReader:
    """Reads the bytes of one value, beginning at `position`."""

    __slots__ = ("data", "position")

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.position = 0

    def byte(self) -> int:
        if self.position >= len(self.data):
            raise MalformedValue("the value ends too early")
        self.position += 1
        return self.data[self.position - 1]

    def count(self) -> int:
        """Read the number of the items that follow. Each item has at least one byte."""
        try:
            count, self.position = read_uvarint(self.data, self.position)
        except (MalformedMessage, IndexError) as error:
            raise MalformedValue(f"a length cannot be read: {error}") from None
        if count > len(self.data) - self.position:
            raise MalformedValue(f"a length of {count} exceeds the {len(self.data) - self.position} bytes that follow")
        return count

    def raw(self, size: int) -> bytes:
        if size > len(self.data) - self.position:
            raise MalformedValue("the value ends too early")
        self.position += size
        return bytes(self.data[self.position - size : self.position])


class Codec:
    """Writes and reads the values of one type. `name` says where the type is used; error messages contain it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, out: bytearray, value: Any) -> Steps[None]:
        """Append the encoding of `value`. Raises UncodableValue."""
        raise NotImplementedError

    def read(self, reader: ValueReader) -> Steps[Any]:
        """Read one value. Raises MalformedValue and UnknownValue."""
        raise NotImplementedError

    def _refuse(self, value: object) -> UncodableValue:
        return UncodableValue(f"{self.name}: a value of the type {type(value).__name__} cannot be sent")


class _Scalar(Codec):
    """A value that is written and read in one step."""

    __slots__ = ()

    def put(self, out: bytearray, value: Any) -> None:
        raise NotImplementedError

    def get(self, reader: ValueReader) -> Any:
        raise NotImplementedError

    def write(self, out: bytearray, value: Any) -> Steps[None]:
        self.put(out, value)
        return
        yield  # never reached, but it makes this method a generator

    def read(self, reader: ValueReader) -> Steps[Any]:
        return self.get(reader)
        yield  # see `write`


class _None(_Scalar):
    """None, encoded as one byte, because every value must have at least one byte (see `ValueReader.count`)."""

    __slots__ = ()

    def put(self, out: bytearray, value: Any) -> None:
        if value is not None:
            raise self._refuse(value)
        out.append(0)

    def get(self, reader: ValueReader) -> None:
        if reader.byte() != 0:
            raise MalformedValue(f"{self.name}: the byte that stands for None is not 0")


class _Bool(_Scalar):
    __slots__ = ()

    def put(self, out: bytearray, value: Any) -> None:
        if type(value) is not bool:
            raise self._refuse(value)
        out.append(value)

    def get(self, reader: ValueReader) -> bool:
        byte = reader.byte()
        if byte > 1:
            raise MalformedValue(f"{self.name}: {byte} is neither true nor false")
        return byte == 1


class _Int(_Scalar):
    __slots__ = ()

    def put(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._refuse(value)
        if not _INT_MIN <= value <= _INT_MAX:
            raise UncodableValue(f"{self.name}: {value} has more than 64 bits")
        out += varint(value)

    def get(self, reader: ValueReader) -> int:
        try:
            value, reader.position = read_varlong(reader.data, reader.position)
        except (MalformedMessage, IndexError) as error:
            raise MalformedValue(f"{self.name}: a number cannot be read: {error}") from None
        return value


class _Float(_Scalar):
    __slots__ = ()

    def put(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, float | int) or isinstance(value, bool):
            raise self._refuse(value)
        try:
            out += _FLOAT.pack(value)
        except StructError:  # an int that is too large
            raise self._refuse(value) from None

    def get(self, reader: ValueReader) -> float:
        value: float = _FLOAT.unpack(reader.raw(_FLOAT.size))[0]
        return value


class _Bytes(_Scalar):
    __slots__ = ()

    def put(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise self._refuse(value)
        out += uvarint(len(value))
        out += value

    def get(self, reader: ValueReader) -> bytes:
        return reader.raw(reader.count())


class _Text(_Scalar):
    __slots__ = ()

    def put(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, str):
            raise self._refuse(value)
        try:
            data = value.encode()
        except UnicodeEncodeError as error:
            raise UncodableValue(f"{self.name}: {error}") from None
        out += uvarint(len(data))
        out += data

    def get(self, reader: ValueReader) -> str:
        try:
            return str(reader.raw(reader.count()), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedValue(f"{self.name}: {error}") from None


class _Enum(_Scalar):
    __slots__ = ("_kind", "_value")

    def __init__(self, name: str, kind: type[Enum]) -> None:
        super().__init__(name)
        self._kind = kind
        value_types = {type(member.value) for member in kind}
        if value_types not in ({int}, {str}):
            raise UncodableType(f"{name}: the values of {kind.__name__} are neither all int nor all str")
        self._value: _Scalar = _Int(name) if value_types == {int} else _Text(name)

    def put(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, self._kind):
            raise self._refuse(value)
        self._value.put(out, value.value)

    def get(self, reader: ValueReader) -> Enum:
        value = self._value.get(reader)
        try:
            return self._kind(value)
        except ValueError:
            raise UnknownValue(f"{self.name}: the {self._kind.__name__} {value!r} is unknown here") from None


class _Sequence(Codec):
    """A tuple, list or set of any length, with items of one type."""

    __slots__ = ("_accepted", "_item", "_make")

    def __init__(self, name: str, item: Codec, make: type[Any], accepted: type[Any]) -> None:
        super().__init__(name)
        self._item = item
        self._make = make
        self._accepted = accepted

    def write(self, out: bytearray, value: Any) -> Steps[None]:
        if not isinstance(value, self._accepted) or isinstance(value, str | bytes):
            raise self._refuse(value)
        out += uvarint(len(value))
        item = self._item
        if isinstance(item, _Scalar):
            for number, each in enumerate(value, 1):
                item.put(out, each)
                if not number % ITEMS_PER_STEP:
                    yield
        else:
            for each in value:
                yield from item.write(out, each)
                yield

    def read(self, reader: ValueReader) -> Steps[Any]:
        values: list[Any] = []
        item = self._item
        if isinstance(item, _Scalar):
            for number in range(1, reader.count() + 1):
                values.append(item.get(reader))
                if not number % ITEMS_PER_STEP:
                    yield
        else:
            for _ in range(reader.count()):
                values.append((yield from item.read(reader)))
                yield
        return values if self._make is list else self._make(values)


class _Mapping(Codec):
    """A mapping, as the sequence of its keys and values."""

    __slots__ = ("_key", "_value")

    def __init__(self, name: str, key: Codec, value: Codec) -> None:
        super().__init__(name)
        self._key = key
        self._value = value

    def write(self, out: bytearray, value: Any) -> Steps[None]:
        if not isinstance(value, collections.abc.Mapping):
            raise self._refuse(value)
        out += uvarint(len(value))
        for key, each in value.items():
            yield from self._key.write(out, key)
            yield from self._value.write(out, each)
            yield

    def read(self, reader: ValueReader) -> Steps[Any]:
        values: dict[Any, Any] = {}
        for _ in range(reader.count()):
            key = yield from self._key.read(reader)
            if key in values:
                raise MalformedValue(f"{self.name}: the key {key!r} is repeated")
            values[key] = yield from self._value.read(reader)
            yield
        return values


class _Fields(Codec):
    """A named tuple, or a tuple of fixed length, with one type hint for each item. The encoding is the number
    of written fields, followed by the fields.
    """

    __slots__ = ("_defaults", "_fields", "_kind")

    def __init__(self, name: str, kind: type[Any], fields: list[Codec], defaults: tuple[Any, ...] = ()) -> None:
        """`defaults` are the default values of the last fields."""
        super().__init__(name)
        self._kind = kind
        self._fields = fields
        self._defaults = defaults

    def write(self, out: bytearray, value: Any) -> Steps[None]:
        if not isinstance(value, self._kind) or len(value) != len(self._fields):
            raise self._refuse(value)
        count = len(value)
        required = count - len(self._defaults)
        while count > required and value[count - 1] == self._defaults[count - 1 - required]:
            count -= 1
        out += uvarint(count)
        for field, each in zip(self._fields[:count], value[:count], strict=True):
            if isinstance(field, _Scalar):
                field.put(out, each)
            else:
                yield from field.write(out, each)

    def read(self, reader: ValueReader) -> Steps[Any]:
        count = reader.count()
        if count > len(self._fields):
            raise UnknownValue(f"{self.name} has {count} fields; this broker knows {len(self._fields)}")
        required = len(self._fields) - len(self._defaults)
        if count < required:
            raise MalformedValue(f"{self.name} has {count} fields; {required} are required")
        values: list[Any] = []
        for field in self._fields[:count]:
            values.append(field.get(reader) if isinstance(field, _Scalar) else (yield from field.read(reader)))
        values += self._defaults[count - required :]
        return tuple(values) if self._kind is tuple else self._kind(*values)


class _Optional(Codec):
    """A value that may be None. The encoding begins with one byte that says whether the value follows."""

    __slots__ = ("_value",)

    def __init__(self, name: str, value: Codec) -> None:
        super().__init__(name)
        self._value = value

    def write(self, out: bytearray, value: Any) -> Steps[None]:
        out.append(value is not None)
        if value is not None:
            yield from self._value.write(out, value)

    def read(self, reader: ValueReader) -> Steps[Any]:
        presence = reader.byte()
        if presence > 1:
            raise MalformedValue(f"{self.name}: {presence} is neither 0 (no value) nor 1 (a value follows)")
        if presence:
            return (yield from self._value.read(reader))
        return None


class _Union(Codec):
    """A value of one of several types, encoded as the name of its class, followed by the value."""

    __slots__ = ("_members", "_names")

    def __init__(self, name: str, members: dict[type[Any], Codec]) -> None:
        super().__init__(name)
        self._members = members
        self._names = {kind.__name__: codec for kind, codec in members.items()}
        if len(self._names) < len(members):
            raise UncodableType(f"{name}: two classes of the union have the same name")

    def write(self, out: bytearray, value: Any) -> Steps[None]:
        codec = self._members.get(type(value))
        if codec is None:
            raise self._refuse(value)
        kind = type(value).__name__.encode()
        out += uvarint(len(kind))
        out += kind
        yield from codec.write(out, value)

    def read(self, reader: ValueReader) -> Steps[Any]:
        kind = reader.raw(reader.count()).decode(errors="replace")
        codec = self._names.get(kind)
        if codec is None:
            raise UnknownValue(f"{self.name}: the class {kind[:100]!r} is unknown here")
        return (yield from codec.read(reader))


_SCALARS: Final[dict[Any, type[_Scalar]]] = {
    bool: _Bool,
    int: _Int,
    float: _Float,
    str: _Text,
    bytes: _Bytes,
    None: _None,
    type(None): _None,
}
_SEQUENCES: Final[dict[Any, tuple[type[Any], type[Any]]]] = {
    list: (list, list),
    set: (set, set),
    frozenset: (frozenset, frozenset),
    collections.abc.Set: (frozenset, collections.abc.Set),
    collections.abc.Sequence: (tuple, collections.abc.Sequence),
}
"""For each generic type: the class of the sequence that `read` returns, and the class that `write` accepts."""
_MAPPINGS: Final = (dict, collections.abc.Mapping)


def codec_for(hint: Any, name: str, depth: int = 0) -> Codec:
    """Return the codec of a type hint. `name` says where the hint is used. Raises UncodableType."""
    if depth > DEPTH_MAX:
        raise UncodableType(f"{name}: the types are nested deeper than {DEPTH_MAX} levels")
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    if hint in _SCALARS:
        return _SCALARS[hint](name)
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(arguments, name, depth)
    if origin is tuple and arguments[-1:] == (...,):
        return _Sequence(name, codec_for(arguments[0], f"{name}[]", depth + 1), tuple, tuple)
    if origin is tuple and arguments:
        items = [codec_for(each, f"{name}[{number}]", depth + 1) for number, each in enumerate(arguments)]
        return _Fields(name, tuple, items)
    if origin in _SEQUENCES:
        return _Sequence(name, codec_for(arguments[0], f"{name}[]", depth + 1), *_SEQUENCES[origin])
    if origin in _MAPPINGS:
        key, value = (codec_for(each, f"{name}[]", depth + 1) for each in arguments)
        return _Mapping(name, key, value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Enum(name, hint)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return fields_codec(hint, get_type_hints(hint), depth)
    raise UncodableType(f"{name}: {hint!r} cannot be sent to another broker")


def fields_codec(kind: type[Any], hints: dict[str, Any], depth: int = 0) -> Codec:
    """Return the codec of a named tuple whose fields have the types `hints`. Raises UncodableType."""
    fields: tuple[str, ...] = kind._fields
    codecs = [codec_for(hints[field], f"{kind.__name__}.{field}", depth + 1) for field in fields]
    defaults: dict[str, Any] = kind._field_defaults
    return _Fields(kind.__name__, kind, codecs, tuple(defaults[field] for field in fields if field in defaults))


def _union(arguments: tuple[Any, ...], name: str, depth: int) -> Codec:
    members = [each for each in arguments if each is not type(None)]
    if len(members) == 1:
        codec = codec_for(members[0], name, depth + 1)
    else:
        kinds: dict[type[Any], Codec] = {}
        for each in members:
            if not isinstance(each, type):
                raise UncodableType(f"{name}: {each!r} cannot be a member of a union")
            kinds[each] = codec_for(each, name, depth + 1)
        codec = _Union(name, kinds)
    return _Optional(name, codec) if len(members) < len(arguments) else codec
