"""Names of error codes, for messages."""

from tidelog.wire.errors import ErrorCode


def error_name(code: int) -> str:
    """Return Kafka's name of an error code, or "error code N" if this release does not know the code: a newer broker
    may send it.
    """
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error code {code}"
