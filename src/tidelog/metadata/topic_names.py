"""Which names a topic may have."""

LENGTH_MAX = 249
"""A directory is named after topic and partition, and file names end at `FILE_NAME_MAX`."""
FILE_NAME_MAX = 255

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


def flat_name(name: str) -> str:
    """Equal for topics that differ in nothing but dots and underscores, of which there may be one at a time.

    Metric names have underscores for dots, so the two could not be told apart there.
    """
    return name.replace(".", "_")
