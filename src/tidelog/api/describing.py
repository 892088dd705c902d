"""Groups that one request has described; their coordinators may answer at different times."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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


class Description(NamedTuple):
    """One group in an answer."""

    group: Any
    size: int
    """Bytes that it takes there, roughly."""


def described_groups(
    ask: Ask,
    describe: Callable[[str, Any], Description],
    response: Callable[[list[Any]], R],
    group_ids: Sequence[str],
) -> "Steps[Outcome[R]]":
    """The response to a request for these groups, in their order. `describe` makes an entry of a group's answer.

    A coordinator is asked once for each group. The same entry answers for a group that is named more than once.
    """
    entries: dict[str, Description] = {}
    gathering: Gathering[None] = Gathering(lambda _: _response(entries, describe, response, group_ids))
    named: dict[str, None] = {}
    for group_id in group_ids:
        if group_id not in named:
            named[group_id] = None
            _ask(ask, group_id, describe, entries, gathering)
        yield
    return gathering.returned()


def _ask(
    ask: Ask,
    group_id: str,
    describe: Callable[[str, Any], Description],
    entries: dict[str, Description],
    gathering: Gathering[None],
) -> None:
    take = gathering.reply()

    def reply(answer: Any) -> None:
        entries[group_id] = describe(group_id, answer)
        take(None)

    try:
        ask(group_id, reply)
    except ApiError as error:
        reply(error)


def _response(
    entries: dict[str, Description],
    describe: Callable[[str, Any], Description],
    response: Callable[[list[Any]], R],
    group_ids: Sequence[str],
) -> Steps[R]:
    groups = []
    repeats: Repeats[str] = Repeats()
    for group_id in group_ids:
        entry = entries[group_id]
        if not repeats.allow(group_id, entry.size):
            entry = describe(group_id, ApiError(REFUSED, ErrorCode.INVALID_REQUEST))
        groups.append(entry.group)
        yield
    return response(groups)
