"""Describe the groups that one request names. Their coordinators may answer at different times."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tidelog.api.pending import Gathering
from tidelog.api.repeats import REPEATS_REFUSED, Repeats
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome

R = TypeVar("R")

DescribeGroup = Callable[[str, Callable[[Any], None]], None]
"""A function that asks a group's coordinator to describe the group. The function calls its second argument with the
description or an ApiError, immediately or later. Raises ApiError."""


class Description(NamedTuple):
    """One group's entry in the response."""

    group: Any
    size: int
    """Approximate size in bytes."""


def describe_all(
    describe_group: DescribeGroup,
    to_description: Callable[[str, Any], Description],
    to_response: Callable[[list[Any]], R],
    group_ids: Sequence[str],
) -> "Steps[Outcome[R]]":
    """Ask the coordinators to describe the groups. Return the response, with the groups in the order of the request.

    The coordinator of each group is asked once. A group that is named more than once gets the same entry each time,
    but it gets an error instead if the repeated entries exceed the limit of `Repeats`. `to_description` converts a
    coordinator's answer into an entry, and `to_response` builds the response from the entries.
    """
    entries: dict[str, Description] = {}
    gathering: Gathering[None] = Gathering(lambda _: _response(entries, to_description, to_response, group_ids))
    seen_ids: dict[str, None] = {}
    for group_id in group_ids:
        if group_id not in seen_ids:
            seen_ids[group_id] = None
            _describe_one(describe_group, group_id, to_description, entries, gathering)
        yield
    return gathering.finish()


def _describe_one(
    describe_group: DescribeGroup,
    group_id: str,
    to_description: Callable[[str, Any], Description],
    entries: dict[str, Description],
    gathering: Gathering[None],
) -> None:
    accept = gathering.reply()

    def reply(answer: Any) -> None:
        entries[group_id] = to_description(group_id, answer)
        accept(None)

    try:
        describe_group(group_id, reply)
    except ApiError as error:
        reply(error)


def _response(
    entries: dict[str, Description],
    to_description: Callable[[str, Any], Description],
    to_response: Callable[[list[Any]], R],
    group_ids: Sequence[str],
) -> Steps[R]:
    groups = []
    repeats: Repeats[str] = Repeats()
    for group_id in group_ids:
        entry = entries[group_id]
        if not repeats.allow(group_id, entry.size):
            entry = to_description(group_id, ApiError(REPEATS_REFUSED, ErrorCode.INVALID_REQUEST))
        groups.append(entry.group)
        yield
    return to_response(groups)
