"""Code that the handlers of transactional requests share."""

from tidelog.wire.errors import ErrorCode


def code_for_version(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """Return the error code for a response of this API version. Versions before `fenced_since` have no PRODUCER_FENCED,
    so INVALID_PRODUCER_EPOCH replaces it.
    """
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
