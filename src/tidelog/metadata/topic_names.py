"""Rules for topic names."""

LENGTH_MAX = 249
"""Longest topic name, in characters. A partition's directory is named TOPIC-PARTITION, and this name must not be longer
than FILE_NAME_MAX."""
FILE_NAME_MAX = 255

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def name_refusal(name: str) -> str | None:
    """Return None for a legal topic name; otherwise return the reason why the name is illegal."""
    if not name:
        return "a topic's name must not be empty"
    if name in (".", ".."):
        return f"a topic must not be named {name!r}"
    if len(name) > LENGTH_MAX:
        return f"a topic's name may have at most {LENGTH_MAX} characters, not {len(name)}"
    if not _LEGAL.issuperset(name):
        return f"a topic's name may contain only ASCII letters, digits, '.', '_' and '-', unlike {name!r}"
    return None


def flat_name(name: str) -> str:
    """Return the name with underscores instead of dots. Two topics must not have the same flat name.

    In the names of Kafka's metrics, dots are replaced by underscores, so the metrics of two topics with the same flat
    name would collide.
    """
    return name.replace(".", "_")
