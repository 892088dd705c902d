"""Names of error codes, for messages."""

from tidelog.wire.errors import ErrorCode


def error_name(code: int) -> str:
    """Return Kafka's name of an error code; "error code N" for one that this release does not know, for example a
    newer broker's.
    """
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error code {code}"
