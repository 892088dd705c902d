"""Names of error codes, as messages have them."""

from tidelog.wire.errors import ErrorCode


def name_of(code: int) -> str:
    """Kafka's name; for a number that this release does not know, a newer broker's say, the number."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error code {code}"
