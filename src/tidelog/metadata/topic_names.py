"""Which names a topic may have."""

from collections.abc import Iterable

LENGTH_MAX = 249
"""A directory is named after topic and partition, and file names end at 255."""

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def name_refusal(name: str) -> str | None:
    """None for a legal name, else why it is not one."""
    if not name:
        return "a topic's name is not empty"
    if name in (".", ".."):
        return f"a topic is not named {name!r}"
    if len(name) > LENGTH_MAX:
        return f"a topic's name has at most {LENGTH_MAX} characters, not {len(name)}"
    if not _LEGAL.issuperset(name):
        return f"a topic's name has ASCII letters, digits, '.', '_' and '-' only, unlike {name!r}"
    return None


def colliding(name: str, names: Iterable[str]) -> str | None:
    """The first of `names` that differs from `name` in nothing but dots and underscores.

    Metric names have underscores for dots, so the two could not be told apart there.
    """
    if "." not in name and "_" not in name:
        return None
    flat = name.replace(".", "_")
    return next((other for other in names if other.replace(".", "_") == flat), None)
