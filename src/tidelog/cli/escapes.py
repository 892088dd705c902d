"""Write escapes for characters and bytes that must not be printed as they are, and decode these escapes."""

import re
import sys


def escape_unprintable(text: str, encoding: str, allowed: str = "") -> str:
    """Escape the characters that control a terminal, bytes that are not UTF-8, and characters that the encoding lacks.

    Characters of `allowed` are not escaped.
    """
    if text.isprintable() and _has_characters(encoding, text):
        return text
    return "".join(c if c in allowed or (c.isprintable() and _has_characters(encoding, c)) else escape(c) for c in text)


def _has_characters(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def escape(character: str) -> str:
    r"""Return the escape of a character: \n, \x1b, \u009b, \u20ac. `unescape` decodes it.

    The escapes \x80 to \xff mean bytes that are not UTF-8. In Python's text, lone surrogates represent these bytes.
    """
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if 0x80 <= code <= 0xFF:
        return f"\\u{code:04x}"
    return character.encode("unicode_escape", "surrogatepass").decode()


ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([nrt0\\]))|\\")
PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}


def unescape(text: str) -> str:
    """Decode the escapes in `text`. `text` is a name as `tables.printable` returns it, but each backslash that belongs
    to the name itself is written twice.

    Raises ValueError for an unknown escape, and for an escape whose number is not a character.
    """

    def character(match: re.Match[str]) -> str:
        byte, short, long, letter = match.groups()
        if byte is not None:
            code = int(byte, 16)
            return chr(code) if code < 0x80 else chr(0xDC00 + code)
        if short is not None or long is not None:
            code = int(short or long, 16)
            if code > sys.maxunicode or (0xD800 <= code <= 0xDFFF and not 0xDC80 <= code <= 0xDCFF):
                raise ValueError(
                    f"{text!r} has the escape {match[0]}, which is no Unicode character; write a byte as \\xHH"
                )
            return chr(code)
        if letter is None:
            raise ValueError(
                f"{text!r} has an unknown escape; use \\n, \\r, \\t, \\0, \\xHH or \\uHHHH, or write a backslash twice"
            )
        return PLAIN_ESCAPES[letter]

    decoded = ESCAPE.sub(character, text)
    # Bytes that are next to each other may be one UTF-8 character.
    return decoded.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
