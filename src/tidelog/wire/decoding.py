"""Generate the decoder of one message in one version: one Python function, whose source is compiled once.

The source calls no function for single fields or structs. Neighbouring fields of fixed size, and a length that
follows them, are read by one `struct` unpack. Nested structs are decoded in the same function, and arrays of structs
in loops of this function. Slices are not checked one by one: the position only increases, so the next read, or one
comparison at the end, detects a slice beyond the end of the buffer.
"""

import struct
import sys
from typing import Any

from tidelog.wire.fields import FIXED_BYTES, FIXED_FORMATS, Field, fields_from_lines
from tidelog.wire.message import Decoder, Message, StepwiseDecoder, Struct
from tidelog.wire.primitives import (
    NO_UUID,
    MalformedMessage,
    VersionNotInMessage,
    finish_uvarint,
    skip_tagged_fields,
    skip_tagged_fields_in_steps,
)

STRING_BYTES_MAX = 32_767
"""Upper bound on the length of a string in a message, in bytes of UTF-8: the largest two-byte length. As in Kafka,
it also applies to compact strings."""
STEP_ITEMS = 32
"""Number of elements of an array of structs or strings that a stepwise codec decodes or encodes between two yields."""
STEP_NUMBERS = 4096
"""Number of elements of an array of numbers that a stepwise decoder reads between two yields, with one unpack."""


def build_decoder(message: type[Message], version: int, *, any_text: bool = False) -> Decoder:
    """Return the function that `message.decode` calls for `version`. Raises VersionNotInMessage.

    With `any_text`, strings need not be UTF-8: other bytes become lone surrogates ("surrogateescape").
    """
    return _compile(_Source(message, version, stepwise=False, any_text=any_text))  # type: ignore[no-any-return]


def build_stepwise_decoder(message: type[Message], version: int) -> StepwiseDecoder:
    """Return a generator function that decodes like `build_decoder`'s function, but yields within long arrays.
    Raises VersionNotInMessage.
    """
    return _compile(_Source(message, version, stepwise=True))  # type: ignore[no-any-return]


def _compile(source: "_Source") -> Any:
    codec_name = "stepwise decoder" if source.stepwise else "decoder"
    code = compile(source.text(), f"<{source.message.__name__} v{source.version} {codec_name}>", "exec")
    exec(code, source.names)  # noqa: S102  # the source is generated above
    return source.names["decode"]


def struct_named(owner: type[Struct], name: str) -> type[Struct]:
    """Return the struct class with this name. `owner` is a class in the same module and has a field of this type."""
    struct_class: type[Struct] = getattr(sys.modules[owner.__module__], name)
    return struct_class


def is_flexible(message: type[Message], version: int) -> bool:
    """Return whether this version has compact lengths and tagged fields. Raises VersionNotInMessage."""
    if not message.min_version <= version <= message.max_version:
        raise VersionNotInMessage(f"{message.__name__} has no version {version}")
    return version >= message.flexible_from


def default_source(field: Field) -> str:
    """Return an expression for the field's default value. For structs whose default is not null, the callers use
    other expressions.
    """
    if field.is_array and field.default is not None:
        return "[]"
    if field.default == NO_UUID:
        return "NO_UUID"
    return repr(field.default)


class _Source:
    """The source lines of one decoder. `run` holds pending reads of fixed size, as (format, target)."""

    def __init__(self, message: type[Message], version: int, *, stepwise: bool, any_text: bool = False) -> None:
        self.message = message
        self.version = version
        self.stepwise = stepwise
        self.convert_text = ".tobytes().decode('utf-8', 'surrogateescape')" if any_text else ".tobytes().decode()"
        self.flexible = is_flexible(message, version)
        self.lines: list[str] = []
        self.indent = 2
        self.run: list[tuple[str, str]] = []
        self.temporaries = 0
        self.names: dict[str, Any] = {
            "new": object.__new__,
            "Malformed": MalformedMessage,
            "finish": finish_uvarint,
            "skip": skip_tagged_fields_in_steps if stepwise else skip_tagged_fields,
            "unpack_from": struct.unpack_from,
            "StructError": struct.error,
            "NO_UUID": NO_UUID,
        }

    def text(self) -> str:
        self.struct(self.message, "m0")
        self.flush()
        name = f"{self.message.__name__} v{self.version}"
        head = [
            "def decode(buffer, p):",
            "    view = buffer if type(buffer) is memoryview else memoryview(buffer)",
            "    size = len(view)",
            "    try:",
        ]
        if self.stepwise:
            head.insert(1, f"    left = {STEP_ITEMS}")
            head.insert(2, "    if not left:")
            head.insert(3, "        yield")  # never reached; makes every decoder a generator, even without arrays
        tail = [
            "        if p > size:",
            f"            raise Malformed('{name}: cut short')",
            "        return m0, p",
            "    except (StructError, IndexError):",
            f"        raise Malformed('{name}: cut short') from None",
            "    except UnicodeDecodeError:",
            f"        raise Malformed('{name}: a string that is not UTF-8') from None",
        ]
        return "\n".join(head + self.lines + tail)

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def temporary(self, prefix: str) -> str:
        self.temporaries += 1
        return f"{prefix}{self.temporaries}"

    def step(self) -> None:
        """At the end of a loop's body, write the lines that yield after every STEP_ITEMS iterations."""
        if self.stepwise:
            self.emit("left -= 1")
            self.emit("if not left:")
            self.emit(f"    left = {STEP_ITEMS}")
            self.emit("    yield")

    def fail(self, condition: str, field: str, reason: str) -> None:
        """Write the lines that raise MalformedMessage if `condition` is true."""
        self.emit(f"if {condition}:")
        self.emit(f"    raise Malformed('{self.message.__name__} v{self.version}: {field} {reason}')")

    def flush(self) -> None:
        """Write the pending fixed-size reads as one unpack."""
        if not self.run:
            return
        formats = "".join(code for code, _ in self.run)
        targets = ", ".join(target for _, target in self.run)
        if formats == "B":
            self.emit(f"{targets} = view[p]")
        else:
            unpack = "unpack_" + formats.replace("?", "t")
            self.names[unpack] = struct.Struct(">" + formats).unpack_from
            self.emit(f"{targets}{',' if len(self.run) == 1 else ''} = {unpack}(view, p)")
        self.emit(f"p += {struct.calcsize('>' + formats)}")
        self.run.clear()

    def struct(self, struct_class: type[Struct], target: str) -> None:
        """Write the lines that read one struct into the variable `target`. The last reads may stay pending in `run`."""
        self.names[struct_class.__name__] = struct_class
        self.emit(f"{target} = new({struct_class.__name__})")
        tagged = []
        for field in fields_from_lines(struct_class.FIELDS):
            attribute = f"{target}.{field.attribute}"
            if self.version not in field.versions:
                self.default(struct_class, field, attribute)
            elif field.tag is not None and self.flexible:
                self.default(struct_class, field, attribute)
                tagged.append(field)
            else:
                self.field(struct_class, field, attribute)
        if self.flexible:
            self.tags(struct_class, target, tagged)

    def default(self, struct_class: type[Struct], field: Field, attribute: str) -> None:
        """Write the assignment of the field's default value."""
        if field.is_struct and not field.is_array and not field.is_optional_struct and field.default is not None:
            self.names[field.type] = struct_named(struct_class, field.type)
            self.emit(f"{attribute} = {field.type}()")
        elif field.is_optional_struct:
            self.emit(f"{attribute} = None")
        else:
            self.emit(f"{attribute} = {default_source(field)}")

    def tags(self, struct_class: type[Struct], target: str, fields: list[Field]) -> None:
        count = self.temporary("n")
        self.run.append(("B", count))
        self.flush()
        self.emit(f"if {count}:")
        self.indent += 1
        if not fields:
            self.emit(f"p = {'yield from ' * self.stepwise}skip(view, p, {count})")
            self.indent -= 1
            return
        self.long_form(count)
        tag, size, end = self.temporary("t"), self.temporary("n"), self.temporary("e")
        self.emit(f"for _ in range({count}):")
        self.indent += 1
        for variable in (tag, size):
            self.run.append(("B", variable))
            self.flush()
            self.long_form(variable)
        self.emit(f"{end} = p + {size}")
        for number, field in enumerate(fields):
            self.emit(f"{'elif' if number else 'if'} {tag} == {field.tag}:")
            self.indent += 1
            self.field(struct_class, field, f"{target}.{field.attribute}")
            self.flush()
            self.fail(f"p != {end}", field.name, "does not exactly fill its tagged field")
            self.indent -= 1
        self.emit("else:")
        self.emit(f"    p = {end}")
        self.step()
        self.indent -= 2

    def long_form(self, variable: str) -> None:
        """Write the lines that read the rest of an unsigned varint. Its first byte is in `variable`."""
        self.emit(f"if {variable} > 127:")
        self.emit(f"    {variable}, p = finish(view, p, {variable})")

    def field(self, struct_class: type[Struct], field: Field, target: str) -> None:
        nullable = self.version in field.nullable
        compact = self.flexible and not field.rigid
        if field.is_array:
            self.array(struct_class, field, target, nullable, compact)
        elif field.is_struct:
            self.nested(struct_class, field, target, nullable)
        elif field.type in FIXED_FORMATS:
            self.run.append((FIXED_FORMATS[field.type], target))
        else:
            self.slice(field, target, nullable, compact)

    def nested(self, struct_class: type[Struct], field: Field, target: str, nullable: bool) -> None:
        inner = self.temporary("m")
        if nullable:
            # Null is encoded as -1, but as 0 inside a tagged field.
            present = self.temporary("n")
            self.run.append(("b", present))
            self.flush()
            self.emit(f"if {present} < {int(field.tag is not None)}:")
            self.emit(f"    {target} = None")
            self.emit("else:")
            self.indent += 1
        self.struct(struct_named(struct_class, field.type), inner)
        self.emit(f"{target} = {inner}")
        if nullable:
            self.flush()
            self.indent -= 1

    def length(self, field: Field, nullable: bool, compact: bool, code: str, null: str) -> str:
        """Write the lines that read a length, and return the name of the variable that holds it.

        If the length is compact, the variable holds its encoded form, which is the real length plus one. If `nullable`,
        the lines that follow are indented into the branch for "not null".
        """
        length = self.temporary("n")
        self.run.append(("B" if compact else code, length))
        self.flush()
        if compact:
            self.long_form(length)
            if field.type == "string" and code == "h":
                # As in Kafka, the largest two-byte length is also the limit for a compact string. Only lengths that are
                # encoded in several bytes are checked, because a length in one byte is always below the limit.
                self.emit(f"    if {length} > {STRING_BYTES_MAX + 1}:")
                self.emit(
                    f"        raise Malformed('{self.message.__name__} v{self.version}: {field.name} is too long')"
                )
        absent = f"not {length}" if compact else f"{length} < 0"
        if nullable:
            self.emit(f"if {absent}:")
            self.emit(f"    {null}")
            self.emit("else:")
            self.indent += 1
        else:
            self.fail(absent, field.name, "is null or has a negative length")
        return length

    def slice(self, field: Field, target: str, nullable: bool, compact: bool) -> None:
        length = self.length(field, nullable, compact, "h" if field.type == "string" else "i", f"{target} = None")
        end = self.temporary("e")
        self.emit(f"{end} = p + {length}{' - 1' if compact else ''}")
        convert = {"string": self.convert_text, "bytes": ".tobytes()", "records": ""}[field.type]
        self.emit(f"{target} = view[p:{end}]{convert}")
        self.emit(f"p = {end}")
        self.indent -= nullable

    def array(self, struct_class: type[Struct], field: Field, target: str, nullable: bool, compact: bool) -> None:
        count = self.length(field, nullable, compact, "i", f"{target} = None")
        if compact:
            self.emit(f"{count} -= 1")
        element_bytes_min = self.bytes_min(struct_class, field)
        # Refuse the array if the remaining bytes cannot hold so many elements. Otherwise, a message of a few bytes
        # could make the decoder allocate much memory.
        self.fail(
            f"{count} * {element_bytes_min} > size - p" if element_bytes_min > 1 else f"{count} > size - p",
            field.name,
            "has an impossible count",
        )
        if field.type in FIXED_FORMATS and field.type != "uuid":
            if self.stepwise:
                self.numbers(FIXED_FORMATS[field.type], target, count, element_bytes_min)
                self.indent -= nullable
                return
            self.emit(
                f"{target} = list(unpack_from(f'>{{{count}}}{FIXED_FORMATS[field.type]}', view, p)) if {count} else []"
            )
            self.emit(f"p += {count} * {element_bytes_min}")
        elif field.type == "uuid":
            end = self.temporary("e")
            self.emit(f"{end} = p + {count} * 16")
            self.emit(f"{target} = [view[i : i + 16].tobytes() for i in range(p, {end}, 16)]")
            self.emit(f"p = {end}")
        else:
            items, item = self.temporary("a"), self.temporary("m")
            self.emit(f"{target} = {items} = []")
            self.emit(f"for _ in range({count}):")
            self.indent += 1
            if field.is_struct:
                self.struct(struct_named(struct_class, field.type), item)
            else:
                self.slice(field, item, False, compact)
            self.flush()
            self.emit(f"{items}.append({item})")
            self.step()
            self.indent -= 1
        self.indent -= nullable

    def numbers(self, code: str, target: str, count: str, size: int) -> None:
        """Write the lines that read an array of `count` numbers, at most STEP_NUMBERS with one unpack."""
        self.emit(f"{target} = []")
        self.emit(f"while {count} > {STEP_NUMBERS}:")
        self.emit(f"    {target} += unpack_from('>{STEP_NUMBERS}{code}', view, p)")
        self.emit(f"    p += {STEP_NUMBERS * size}")
        self.emit(f"    {count} -= {STEP_NUMBERS}")
        self.emit("    yield")
        self.emit(f"if {count}:")
        self.emit(f"    {target} += unpack_from(f'>{{{count}}}{code}', view, p)")
        self.emit(f"    p += {count} * {size}")

    def bytes_min(self, struct_class: type[Struct], field: Field) -> int:
        """Return a lower bound on the encoded size of `field`, in bytes. For an array, the bound is for one element."""
        if field.type in FIXED_BYTES:
            return FIXED_BYTES[field.type]
        if not field.is_struct:
            return 1 if self.flexible else 2 if field.type == "string" else 4
        total = int(self.flexible)
        inner = struct_named(struct_class, field.type)
        for part in fields_from_lines(inner.FIELDS):
            if self.version not in part.versions or (self.flexible and part.tag is not None):
                continue
            if part.is_array:
                total += 1 if self.flexible else 4
            elif part.is_struct and self.version in part.nullable:
                total += 1
            else:
                total += self.bytes_min(inner, part)
        return total
