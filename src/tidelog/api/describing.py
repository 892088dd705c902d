"""Groups that one request has described; their coordinators may answer at different times."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.api.pending import Gathering
from tidelog.api.repeats import REFUSED, Repeats
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

G = TypeVar("G")
R = TypeVar("R")

Ask = Callable[[str, Callable[[Any], None]], None]
"""Has a group described: now or later, by a call with what it is or an ApiError. Raises ApiError."""


def described_groups(
    ask: Ask, told: Callable[[str, Any], G], response: Callable[[list[G]], R], group_ids: Sequence[str]
) -> "Steps[Outcome[R]]":
    """The response to a request for these groups, in their order; `told` is what it holds of one, by its answer."""
    describing: Gathering[G] = Gathering(response)
    repeats = Repeats()
    for group_id in group_ids:
        reply = _reply(describing, told, group_id)
        try:
            if repeats.is_one_too_many(group_id):
                raise ApiError(REFUSED, ErrorCode.INVALID_REQUEST)
            ask(group_id, reply)
        except ApiError as error:
            reply(error)
        yield
    return describing.returned()


def _reply(describing: Gathering[G], told: Callable[[str, Any], G], group_id: str) -> Callable[[Any], None]:
    take = describing.reply()

    def reply(answer: Any) -> None:
        take(told(group_id, answer))

    return reply
