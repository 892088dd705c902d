"""Code that the handlers of transactional requests share."""

from tidelog.wire.errors import ErrorCode

WITHOUT_CONTROLLER = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
"""Errors that mean that the controller is temporarily unable to give this broker new producer ids."""


def code_for_producer(code: ErrorCode) -> ErrorCode:
    """Return the error code for a producer whose request needs a new producer id.

    As in Kafka, this is COORDINATOR_LOAD_IN_PROGRESS if the controller is unable to answer. All producers repeat the
    request after this error, but some give up after REQUEST_TIMED_OUT or NOT_CONTROLLER.
    """
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if code in WITHOUT_CONTROLLER else code


def code_for_version(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """Return the error code that clients of this version know. Versions of an API before `fenced_since` have no
    PRODUCER_FENCED.
    """
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
