"""Read and write texts of settings as Java does: numbers, booleans, lists and class names.

Kafka reads settings with `ConfigDef.parseType`. A configuration file that works with Kafka must mean the same here.
"""

import re
import unicodedata

TRIMMED_CHARACTERS = "".join(map(chr, range(0x21)))
"""The characters that `String.trim()` removes at both ends: all characters up to U+0020, and no other white space."""
_LIST_SPACE = " \t\n\x0b\f\r"
r"""The characters that `\s` matches in Java's regular expressions."""
_INTEGER = re.compile(r"[+-]?\d+")
_DIGITS_MAX = 19
"""Number of digits of the largest LONG."""
_DOUBLE = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<name>NaN|Infinity)"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)"
)
_CLASS = re.compile(r"[^\W\d][\w$]*(?:[.$][^\W\d][\w$]*)*")
_PRIMITIVES = ("boolean", "byte", "char", "double", "float", "int", "long", "short", "void")


def trim(text: str) -> str:
    """Remove TRIMMED_CHARACTERS at both ends, like Java's `String.trim()`."""
    return text.strip(TRIMMED_CHARACTERS)


def parse_integer(text: str, bits: int) -> int | None:
    """Parse a trimmed text as Java's `parseShort`, `parseInt` or `parseLong` does. Returns None where these throw an
    exception.

    Java accepts the decimal digits of every script, but only digits that are one UTF-16 code unit.
    """
    if not _INTEGER.fullmatch(text) or max(text) > "\uffff":
        return None
    negative = text[0] == "-"
    digits = text.lstrip("+-")
    if not digits.isascii():
        digits = "".join(str(unicodedata.decimal(digit)) for digit in digits)
    digits = digits.lstrip("0") or "0"
    if len(digits) > _DIGITS_MAX:
        return None
    value = -int(digits) if negative else int(digits)
    limit = 1 << (bits - 1)
    return value if -limit <= value < limit else None


def parse_double(text: str) -> float | None:
    """Parse a trimmed text as Java's `Double.parseDouble` does. Returns None where that method throws an exception."""
    match = _DOUBLE.fullmatch(text)
    if match is None:
        return None
    if match["name"] == "NaN":
        return float("nan")
    if match["name"]:
        value = float("inf")
    elif match["decimal"]:
        value = float(match["decimal"])
    else:
        value = _parse_hexadecimal(match["hex"])
    return -value if match["sign"] == "-" else value


def _parse_hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return float("inf")


def double_text(value: float) -> str:
    """Format a number as `Double.toString` does: 0.5, 100.0, 1.0E7, 1.0E-4, NaN."""
    if value != value:
        return "NaN"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign = "-" if value < 0 else ""
    if abs(value) == float("inf"):
        return f"{sign}Infinity"
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = len(digits) - len(fraction) - 1 + int(exponent or 0)
    digits = digits.rstrip("0")
    if len(digits) == 1:
        # Java writes at least two digits, and chooses the digits that are nearest to the value: 4.9E-324, not 5.0E-324.
        two_digits = f"{abs(value):.1e}"
        if float(two_digits) == abs(value):
            return f"{sign}{two_digits[:3]}E{int(two_digits[4:])}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"


def parse_boolean(text: str) -> bool | None:
    """Parse a trimmed text as true or false, with Java's `equalsIgnoreCase`. Returns None for any other text."""
    if len(text) > len("false"):
        return None
    upper = "".join(character.upper() for character in text)
    if len(upper) != len(text) or upper not in ("TRUE", "FALSE"):
        return None
    return upper == "TRUE"


def parse_list(text: str) -> list[str]:
    """Split a trimmed text at commas, and remove the white space at both ends of each item. An empty text has no
    items.
    """
    return [item.strip(_LIST_SPACE) for item in text.split(",")] if text else []


def is_class_name(text: str) -> bool:
    """Return whether the text is a legal name of a Java class. This does not check whether the class exists."""
    return _CLASS.fullmatch(text) is not None and text not in _PRIMITIVES


def split_at_commas(text: str) -> list[str]:
    """Split like Java's `text.split(",")`: the parts are not trimmed, and empty parts at the end are dropped."""
    parts = text.split(",")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    # As in Java, a text that consists only of commas has no parts, but the empty text has one empty part.
    return [] if parts == [""] and text else parts
