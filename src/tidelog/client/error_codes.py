"""Names of error codes, for messages."""

from tidelog.wire.errors import ErrorCode


def error_name(code: int) -> str:
    """Return Kafka's name of an error code, or "error code N" for an unknown code, which a newer broker may send."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error code {code}"
