"""Convert the reply of a group's or a transaction's coordinator into the return value of a handler."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tidelog.api.pending import Pending

R = TypeVar("R")


class CoordinatorReply(Generic[R]):
    """The function (`Reply`) that the coordinator calls with its answer to one request. `build` converts the answer,
    which may be an ApiError, into the response.
    """

    __slots__ = ("_build", "_pending", "_response")

    def __init__(self, build: Callable[[Any], R]) -> None:
        self._build = build
        self._response: R | None = None
        self._pending: Pending[R] | None = None

    def __call__(self, answer: Any) -> None:
        response = self._build(answer)
        if self._pending is None:
            self._response = response
        else:
            self._pending.complete(response)

    def outcome(self) -> R | Pending[R]:
        """Return the response if the coordinator has replied already, which is the usual case. Otherwise return a
        pending response.
        """
        if self._response is not None:
            return self._response
        self._pending = Pending()
        return self._pending
