"""Groups that one request has described; their coordinators may answer at different times."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from tidelog.api.pending import Pending
from tidelog.api.repeats import REFUSED, Repeats
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode

G = TypeVar("G")
R = TypeVar("R")

Ask = Callable[[str, Callable[[Any], None]], None]
"""Has a group described: now or later, by a call with what it is or an ApiError. Raises ApiError."""


def described_groups(
    ask: Ask, told: Callable[[str, Any], G], response: Callable[[list[G]], R], group_ids: Sequence[str]
) -> Steps[R | Pending[R]]:
    """The response to a request for these groups, in their order; `told` is what it holds of one, by its answer."""
    describing = _Describing(told, response, len(group_ids))
    repeats = Repeats()
    for place, group_id in enumerate(group_ids):
        reply = partial(describing.reply, place, group_id)
        try:
            if repeats.is_one_too_many(group_id):
                raise ApiError(REFUSED, ErrorCode.INVALID_REQUEST)
            ask(group_id, reply)
        except ApiError as error:
            reply(error)
        yield
    return describing.returned()


class _Describing(Generic[G, R]):
    def __init__(self, told: Callable[[str, Any], G], response: Callable[[list[G]], R], count: int) -> None:
        self._told = told
        self._response = response
        self._groups: list[Any] = [None] * count
        self._left = count
        self._pending: Pending[R] | None = None

    def reply(self, place: int, group_id: str, answer: Any) -> None:
        self._groups[place] = self._told(group_id, answer)
        self._left -= 1
        if not self._left and self._pending is not None:
            self._pending.complete(self._response(self._groups))

    def returned(self) -> R | Pending[R]:
        if not self._left:
            return self._response(self._groups)
        self._pending = Pending()
        return self._pending
