"""Generate the encoders of one message in one version as Python source, which is compiled once.

Neighbouring fields of fixed size, and a length that follows them, are written by one `struct` pack. All parts are
joined once at the end. A message with record data is encoded into pieces, so that record data is not copied. Only
`Message.encode` copies the record data, because it joins the pieces.
"""

import struct
from collections.abc import Iterable
from typing import Any

from tidelog.wire.decoding import STEP_ITEMS, default_source, is_flexible, struct_named
from tidelog.wire.fields import FIXED_FORMATS, NO_VERSIONS, Field, fields_from_lines
from tidelog.wire.message import Encoder, Message, PiecesEncoder, StepwiseEncoder, Struct, records_bytes
from tidelog.wire.primitives import NO_UUID, FieldNotInVersion, UnencodableValue, uvarint

ONE_BYTE = tuple(value.to_bytes(1, "big") for value in range(128))
"""Encodings of the unsigned varints below 128, which take one byte."""
PIECE_PARTS = 4096
"""If a stepwise encoder has more parts than this when it yields, it first joins them into one piece."""


def build_encoders(message: type[Message], version: int, *, any_text: bool = False) -> tuple[Encoder, PiecesEncoder]:
    """Return the functions that `message.encoder` and `message.pieces_encoder` return for `version`. Raises
    VersionNotInMessage.

    With `any_text`, strings may contain lone surrogates, which represent bytes that are not UTF-8
    ("surrogateescape").
    """
    source = _Source(message, version, stepwise=False, any_text=any_text)
    encode = _compile(source)
    if not source.in_pieces:
        return encode, lambda message: [encode(message)]
    return lambda message: b"".join(encode(message)), encode


def build_stepwise_encoder(message: type[Message], version: int) -> StepwiseEncoder:
    """Return a generator function that encodes into pieces and yields within long arrays."""
    return _compile(_Source(message, version, stepwise=True))  # type: ignore[no-any-return]


def _compile(source: "_Source") -> Any:
    codec_name = "stepwise encoder" if source.stepwise else "encoder"
    code = compile(source.text(), f"<{source.message.__name__} v{source.version} {codec_name}>", "exec")
    exec(code, source.names)  # noqa: S102  # the source is generated above
    return source.names["encode"]


def add_records(pieces: list[Any], before: Iterable[bytes], records: Any) -> None:
    """Join the bytes in `before` and append them to `pieces`. Then append the record data."""
    pieces.append(b"".join(before))
    if isinstance(records, list):
        pieces += records
    else:
        pieces.append(records)


class _Source:
    """The source lines of one encoder.

    `run` holds pending values of fixed size, as (format, expression). `parts` holds pending expressions of type bytes,
    in order. `out` is the name of the list that receives them.
    """

    def __init__(self, message: type[Message], version: int, *, stepwise: bool, any_text: bool = False) -> None:
        self.message = message
        self.version = version
        self.stepwise = stepwise
        self.encode_text = ".encode('utf-8', 'surrogateescape')" if any_text else ".encode()"
        self.flexible = is_flexible(message, version)
        self.in_pieces = stepwise or _has_records(message, version)
        self.lines: list[str] = []
        self.indent = 2
        self.run: list[tuple[str, str]] = []
        self.parts: list[str] = []
        self.out = "out"
        self.out_is_used = False  # stays False if the whole message is one expression, which needs no list
        self.temporaries = 0
        self.names: dict[str, Any] = {
            "join": b"".join,
            "pack": struct.pack,
            "uvarint": uvarint,
            "ONE_BYTE": ONE_BYTE,
            "NO_UUID": NO_UUID,
            "records_bytes": records_bytes,
            "add_records": add_records,
            "FieldNotInVersion": FieldNotInVersion,
            "UnencodableValue": UnencodableValue,
            "StructError": struct.error,
        }

    def text(self) -> str:
        self.struct(self.message, "m0")
        self.flush_run()
        head = ["def encode(m0):", "    try:"]
        if self.stepwise:
            # This condition is never true. But because of the `yield`, the encoder is a generator even if the message
            # has no arrays.
            head += [f"        left = {STEP_ITEMS}", "        if not left:", "            yield"]
        if self.in_pieces:
            self.write_parts()
            head += ["        pieces = []", "        out = []"]
            has_last_piece = "out or not pieces" if self.stepwise else "out"
            tail = [f"        if {has_last_piece}:", "            pieces.append(join(out))", "        return pieces"]
        elif not self.out_is_used:
            tail = [f"        return {self.joined()}"]
        else:
            self.write_parts()
            head += ["        out = []"]
            tail = ["        return join(out)"]
        tail += [
            "    except StructError as error:",
            f"        raise UnencodableValue(f'{self.message.__name__} v{self.version}: {{error}}') from error",
        ]
        return "\n".join(head + self.lines + tail)

    def joined(self) -> str:
        """Return the pending parts as one expression of type bytes."""
        parts, self.parts = self.parts, []
        if not parts:
            return "b''"
        return parts[0] if len(parts) == 1 else f"join(({', '.join(parts)}))"

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def temporary(self, prefix: str) -> str:
        self.temporaries += 1
        return f"{prefix}{self.temporaries}"

    def packer(self, formats: str) -> str:
        name = "pack_" + formats.replace("?", "t")
        self.names[name] = struct.Struct(">" + formats).pack
        return name

    def flush_run(self) -> None:
        """Convert the pending values of fixed size to one part. Only the last value can be a compact length (`C`)."""
        if not self.run:
            return
        run, self.run = self.run, []
        compact = run.pop()[1] if run[-1][0] == "C" else ""
        formats = "".join(code for code, _ in run)
        values = ", ".join(value for code, value in run if code != "x")
        fixed = f"{self.packer(formats)}({values})" if run else ""
        if not compact:
            self.parts.append(fixed if values else repr(bytes(len(formats))))
        elif not run:
            self.parts.append(f"(ONE_BYTE[{compact}] if {compact} < 128 else uvarint({compact}))")
        else:
            short = f"{self.packer(formats + 'B')}({values}{', ' if values else ''}{compact})"
            self.parts.append(f"({short} if {compact} < 128 else {fixed} + uvarint({compact}))")

    def write_parts(self) -> None:
        """Write the pending values and parts into `out`. This must happen before a loop or branch begins, and again
        before the loop or branch ends.
        """
        self.flush_run()
        self.out_is_used |= self.out == "out"
        if len(self.parts) == 1:
            self.emit(f"{self.out}.append({self.parts[0]})")
        elif self.parts:
            self.emit(f"{self.out} += ({', '.join(self.parts)})")
        self.parts.clear()

    def struct(self, struct_class: type[Struct], source: str) -> None:
        """Write the struct in the variable whose name is `source`. The struct's last values may stay pending."""
        tagged = []
        for field in fields_from_lines(struct_class.FIELDS):
            value = f"{source}.{field.attribute}"
            if self.version not in field.versions:
                if not field.ignorable:
                    self.emit(f"if {self.is_set(struct_class, field, value)}:")
                    self.emit(
                        f"    raise FieldNotInVersion('{struct_class.__name__}', '{field.attribute}', {self.version})"
                    )
            elif field.tag is not None and self.flexible:
                tagged.append(field)
            else:
                self.field(struct_class, field, value)
        if tagged:
            self.tags(struct_class, source, tagged)
        elif self.flexible:
            self.run.append(("x", ""))  # a zero byte: the struct has no tagged fields

    def is_set(self, struct_class: type[Struct], field: Field, value: str) -> str:
        """Return a condition that is true if the value is not the field's default."""
        if field.is_optional_struct:
            self.names[field.type] = struct_named(struct_class, field.type)
            return f"{value} is not None and {value} != {field.type}()"
        if field.is_struct and not field.is_array and field.default is not None:
            self.names[field.type] = struct_named(struct_class, field.type)
            return f"{value} != {field.type}()"
        if field.default is None:
            return f"{value} is not None"
        if field.is_array and field.nullable == NO_VERSIONS:
            return value
        return f"{value} != {default_source(field)}"

    def tags(self, struct_class: type[Struct], source: str, fields: list[Field]) -> None:
        """Write the tagged fields whose value is not the default, in the order of their tags."""
        tagged = self.temporary("t")
        outer = self.out, self.run, self.parts
        self.emit(f"{tagged} = ()")
        for field in sorted(fields, key=lambda field: field.tag or 0):
            self.out, self.run, self.parts = self.temporary("o"), [], []
            self.emit(f"if {self.is_set(struct_class, field, f'{source}.{field.attribute}')}:")
            self.indent += 1
            self.emit(f"{self.out} = []")
            self.field(struct_class, field, f"{source}.{field.attribute}")
            self.write_parts()
            body = self.temporary("s")
            self.emit(f"{body} = join({self.out})")
            self.emit(f"{tagged} += ({uvarint(field.tag or 0)!r}, uvarint(len({body})), {body})")
            self.indent -= 1
        self.out, self.run, self.parts = outer
        self.flush_run()
        self.parts.append(f"(uvarint(len({tagged}) // 3) + join({tagged}) if {tagged} else b'\\x00')")

    def field(self, struct_class: type[Struct], field: Field, value: str) -> None:
        nullable = self.version in field.nullable
        compact = self.flexible and not field.rigid
        if field.is_array:
            self.array(struct_class, field, value, nullable, compact)
        elif field.is_struct:
            self.nested(struct_class, field, value, nullable)
        elif field.type in FIXED_FORMATS:
            self.run.append((FIXED_FORMATS[field.type], value))
        elif field.type == "records":
            self.records(value, nullable, compact)
        else:
            self.bytes_field(field, value, nullable, compact)

    def nested(self, struct_class: type[Struct], field: Field, value: str, nullable: bool) -> None:
        inner = self.temporary("m")
        self.emit(f"{inner} = {value}")
        if not nullable:
            self.struct(struct_named(struct_class, field.type), inner)
            return
        # Null is encoded as -1, but as 0 inside a tagged field.
        self.write_parts()
        self.emit(f"if {inner} is None:")
        null = b"\xff" if field.tag is None else b"\x00"
        self.emit(f"    {self.out}.append({null!r})")
        self.emit("else:")
        self.indent += 1
        self.parts.append("b'\\x01'")
        self.struct(struct_named(struct_class, field.type), inner)
        self.write_parts()
        self.indent -= 1

    def length(self, source: str, nullable: bool, compact: bool, code: str, size: str) -> None:
        """Add a part with the pending values and the length of `source`. If `nullable`, the length of None is encoded
        as -1, or as 0 if `compact`.
        """
        length = f"{size} + 1" if compact else size
        if nullable:
            length = f"{0 if compact else -1} if {source} is None else {length}"
        if compact:
            count = self.temporary("n")
            self.emit(f"{count} = {length}")
            self.run.append(("C", count))
        else:
            self.run.append((code, length))
        self.flush_run()

    def bytes_field(self, field: Field, value: str, nullable: bool, compact: bool) -> None:
        text = field.type == "string"
        source = self.temporary("s")
        if nullable:
            self.emit(f"{source} = {value}")
            if text:
                self.emit(f"if {source} is not None:")
                self.emit(f"    {source} = {source}{self.encode_text}")
            self.length(source, True, compact, "h" if text else "i", f"len({source})")
            self.parts.append(f"{source} or b''")
        else:
            self.emit(f"{source} = {value}{self.encode_text if text else ''}")
            self.length(source, False, compact, "h" if text else "i", f"len({source})")
            self.parts.append(source)

    def records(self, value: str, nullable: bool, compact: bool) -> None:
        source, size = self.temporary("s"), self.temporary("n")
        self.emit(f"{source} = {value}")
        self.emit(f"{size} = 0 if {source} is None else records_bytes({source})")
        self.length(source, nullable, compact, "i", size)
        self.write_parts()
        self.emit(f"if {size}:")
        self.emit(f"    add_records(pieces, out, {source})")
        self.emit("    out = []")

    def array(self, struct_class: type[Struct], field: Field, value: str, nullable: bool, compact: bool) -> None:
        items = self.temporary("a")
        self.emit(f"{items} = {value}")
        self.length(items, nullable, compact, "i", f"len({items})")
        if field.type == "uuid":
            self.parts.append(f"join({items}{' or ()' if nullable else ''})")
            return
        if field.type in FIXED_FORMATS:
            self.parts.append(f"(pack(f'>{{len({items})}}{FIXED_FORMATS[field.type]}', *{items}) if {items} else b'')")
            return
        self.write_parts()
        item = self.temporary("m")
        self.emit(f"for {item} in {items}{' or ()' if nullable else ''}:")
        self.indent += 1
        if field.is_struct:
            self.struct(struct_named(struct_class, field.type), item)
        else:
            self.bytes_field(field, item, False, compact)
        self.write_parts()
        if self.stepwise:
            self.step()
        elif self.lines[-1].endswith(":"):
            self.emit("pass")
        self.indent -= 1

    def step(self) -> None:
        """Write the end of a loop's body, which yields after every STEP_ITEMS iterations. If there are more than
        PIECE_PARTS parts before the yield, the loop first joins them to one piece.
        """
        self.emit("left -= 1")
        self.emit("if not left:")
        self.emit(f"    left = {STEP_ITEMS}")
        self.emit(f"    if len(out) > {PIECE_PARTS}:")
        self.emit("        pieces.append(join(out))")
        self.emit("        out = []")
        self.emit("    yield")


def _has_records(struct_class: type[Struct], version: int) -> bool:
    return any(
        field.type == "records" or (field.is_struct and _has_records(struct_named(struct_class, field.type), version))
        for field in fields_from_lines(struct_class.FIELDS)
        if version in field.versions
    )
