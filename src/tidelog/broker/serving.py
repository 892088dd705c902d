"""Process a request that may be long in steps: decode it, handle it, and encode the response."""

import logging
from collections.abc import Callable
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from tidelog.api.services import CloseConnection
from tidelog.wire.arrays import parts_of
from tidelog.wire.errors import ApiError
from tidelog.wire.primitives import MalformedMessage, skip_tagged_fields_in_steps

if TYPE_CHECKING:
    from tidelog.api.metering import Meter
    from tidelog.api.registry import Route
    from tidelog.api.services import RequestContext, Services
    from tidelog.model.steps import Steps
    from tidelog.runtime.interfaces import Piece
    from tidelog.runtime.turns import Turns

logger = logging.getLogger("tidelog.connection")


class Encoded:
    """An encoded response in pieces, without its header. The response's objects have been freed."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: "list[Piece]") -> None:
        self.pieces = pieces


def served_in_steps(
    services: "Services",
    found: "Route",
    context: "RequestContext",
    frame: memoryview,
    position: int,
    is_wanted: Callable[[], bool],
) -> "Steps[Any]":
    """Decode the request at `position` (its header's tagged fields come first), and call its handler.

    Returns the handler's outcome. A response, or the outcome of the handler's own steps, becomes `Encoded` if it is
    still needed.
    """
    try:
        if found.flexible_request:
            position = yield from skip_tagged_fields_in_steps(frame, position + 1, frame[position])
        request = yield from found.decode_in_steps(frame, position)
    except (MalformedMessage, IndexError) as error:
        return CloseConnection(f"{found.name} v{context.api_version}: {error}")
    parts: list[list[Any]] = []
    try:
        parts = yield from parts_of(request)
        answer = found.handle_wide(services, context, request)
        del request
        steps = answered_in_steps(services.turns, found, answer, is_wanted, context.meter)
        del answer  # only these steps hold a reference now, so that freeing it in steps works
        return (yield from steps)
    finally:
        services.turns.free_in_steps(parts)


def answered_in_steps(
    turns: "Turns", found: "Route", answer: Any, is_wanted: Callable[[], bool], meter: "Meter | None" = None
) -> "Steps[Any]":
    """Run a handler's own steps, and encode its response; None if the response is no longer needed. Other outcomes
    are returned unchanged.

    With a `meter`, the throttle time is written into the response.
    """
    while isinstance(answer, GeneratorType):
        answer = yield from answer
    if type(answer) is not found.response:
        return answer
    if meter is not None:
        meter.settle(answer)
    if not is_wanted():
        return None
    parts: list[list[Any]] = []
    try:
        parts = yield from parts_of(answer)
        return Encoded((yield from found.encode_in_steps(answer)))
    except Exception:
        return CloseConnection(not_encoded(found))
    finally:
        del answer
        turns.free_in_steps(parts)


def failure_response(found: "Route", context: "RequestContext", error: Exception) -> Any:
    """Return the response to a request whose handler failed, with the error if the API has a field for it."""
    if not isinstance(error, ApiError):
        logger.exception(
            "request failed api=%s version=%d client=%s peer=%s",
            found.name, context.api_version, context.client_id, context.peer.name, exc_info=error,
        )  # fmt: skip
        error = ApiError("the broker failed on this request; its log says more")
    return found.error_response(error) or CloseConnection(f"{found.name}: {error.message}")


def not_encoded(found: "Route") -> str:
    """Log the failure of an encoding, and return the reason to close the connection."""
    logger.exception("response cannot be encoded api=%s version=%d", found.name, found.version)
    return f"{found.name}: the response cannot be encoded"
