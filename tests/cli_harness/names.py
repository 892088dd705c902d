"""Names that are no text: how commands print them, and how they are typed."""

import base64
from typing import Any

from cli_harness import Ran


def name_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def named(document: dict[str, Any], field: str) -> str:
    """Return the name in a field of a command's JSON, also one that is no text."""
    encoded = document.get(f"{field}_base64")
    return str(document[field]) if encoded is None else name_of(base64.b64decode(encoded))


def escaped(name: str) -> str:
    """Return the name as it is typed with --escaped."""
    whole = "".join(
        f"\\x{ord(c) - 0xDC00:02x}" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in name.replace("\\", "\\\\")
    )
    return whole.replace("\0", "\\0")


def check_table(ran: Ran) -> None:
    """Check that nothing in the output steers a terminal."""
    for shown in (ran.text, ran.errors):
        assert all(character.isprintable() or character == "\n" for character in shown)
