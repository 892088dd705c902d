"""Code that the handlers of transactional requests share."""

from tidelog.wire.errors import ErrorCode


def code_for_version(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """Return the error code that clients of this version know. Versions of an API before `fenced_since` have no
    PRODUCER_FENCED.
    """
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
