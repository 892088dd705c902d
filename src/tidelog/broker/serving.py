"""Process a request in steps, since it may be long: decode it, handle it, and encode the response."""

import logging
from collections.abc import Callable
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from tidelog.api.services import CloseConnection, Encoded
from tidelog.wire.arrays import parts_of
from tidelog.wire.errors import ApiError
from tidelog.wire.primitives import MalformedMessage, skip_tagged_fields_in_steps

if TYPE_CHECKING:
    from tidelog.api.metering import Meter
    from tidelog.api.registry import Route
    from tidelog.api.services import RequestContext, Services
    from tidelog.model.steps import Steps
    from tidelog.runtime.turns import Turns

logger = logging.getLogger("tidelog.connection")


def handle_in_steps(
    services: "Services",
    route: "Route",
    context: "RequestContext",
    frame: memoryview,
    position: int,
    is_wanted: Callable[[], bool],
) -> "Steps[Any]":
    """Decode the request, and call its handler. `position` is where the header's tagged fields
    begin; if the version has no tagged fields, it is the end of the header.

    If the outcome is a response, or steps that return a response, the response is encoded, and `Encoded` is
    returned. If the response is not needed any more (`is_wanted` returns False), None is returned. Any other outcome
    is returned unchanged.
    """
    try:
        if route.flexible_request:
            position = yield from skip_tagged_fields_in_steps(frame, position + 1, frame[position])
        request = yield from route.decode_in_steps(frame, position)
    except (MalformedMessage, IndexError) as error:
        return CloseConnection(f"{route.name} v{context.api_version}: {error}")
    parts: list[list[Any]] = []
    try:
        parts = yield from parts_of(request)
        answer = route.handle_wide(services, context, request)
        del request
        steps = finish_in_steps(services.turns, route, answer, is_wanted, context.meter)
        del answer  # now only `steps` refers to the response, so that the response can be freed in steps
        return (yield from steps)
    finally:
        services.turns.free_in_steps(parts)


def finish_in_steps(
    turns: "Turns", route: "Route", answer: Any, is_wanted: Callable[[], bool], meter: "Meter | None" = None
) -> "Steps[Any]":
    """Run the steps that a handler has returned, encode the response, and return it as `Encoded`. If the response is
    not needed any more, None is returned. Any other outcome is returned unchanged.

    With a `meter`, the throttle time is written into the response.
    """
    while isinstance(answer, GeneratorType):
        answer = yield from answer
    if type(answer) is not route.response:
        return answer
    if meter is not None:
        meter.record_usage(answer)
    if not is_wanted():
        return None
    parts: list[list[Any]] = []
    try:
        parts = yield from parts_of(answer)
        return Encoded((yield from route.encode_in_steps(answer)))
    except Exception:
        return CloseConnection(log_encoding_failure(route))
    finally:
        del answer
        turns.free_in_steps(parts)


def failure_response(route: "Route", context: "RequestContext", error: Exception) -> Any:
    """Return the response to a request whose handler failed; CloseConnection if the API has no field for an error."""
    if not isinstance(error, ApiError):
        logger.exception(
            "request failed api=%s version=%d client=%s peer=%s",
            route.name, context.api_version, context.client_id, context.peer.name, exc_info=error,
        )  # fmt: skip
        error = ApiError("the broker failed on this request; see its log")
    return route.error_response(error) or CloseConnection(f"{route.name}: {error.message}")


def log_encoding_failure(route: "Route") -> str:
    """Log that a response could not be encoded, and return the reason for closing the connection."""
    logger.exception("response cannot be encoded api=%s version=%d", route.name, route.version)
    return f"{route.name}: the response cannot be encoded"
