"""Commit the offsets of a streaming query to a consumer group, so that tools for groups show the query's lag.

The checkpoint of the query alone decides where the query continues. The group's offsets are only for display: the query
does not join the group, and a failed commit causes only a warning.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pyspark_tidelog.errors import OptionError, counted
from pyspark_tidelog.offsets import Offsets
from tidelog.client.each import Results
from tidelog.client.errors import ClientError
from tidelog.client.groups import Group, GroupListing, ListedGroup
from tidelog.model.ids import TopicPartition
from tidelog.wire.errors import ApiError, ErrorCode

logger = logging.getLogger("tidelog.spark")

COMMIT_TIMEOUT_MS = 5_000
"""Time limit for one commit with all its attempts, in milliseconds. The query waits for the commit."""
PAUSE_AFTER_FAILURE_S = 30.0
"""Pause after a failed request, in seconds. No request is sent during the pause."""
HAS_MEMBERS = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)
"""If a group has members, a commit by a client that is not a member fails with one of these error codes."""


class GroupClient(Protocol):
    """The part of `tidelog.client.blocking.Client` that GroupOffsets needs."""

    def list_groups(self) -> GroupListing: ...
    def describe_groups(self, listed: Sequence[ListedGroup]) -> Results[str, Group]: ...
    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> Results[TopicPartition, int]: ...
    def close(self) -> None: ...


class GroupOffsets:
    """The committed offsets of one query's group."""

    def __init__(
        self, group_id: str, connect: Callable[[], GroupClient], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._group_id = group_id
        self._connect = connect
        self._monotonic = monotonic
        self._client: GroupClient | None = None
        self._committed: Offsets = {}
        self._paused_until = float("-inf")
        self._members_checked = False

    def refuse_members(self) -> None:
        """Raise OptionError if the group has members, because their commits and those of the query would replace each
        other.

        Log a warning if the group cannot be described. Later calls try again, but not before PAUSE_AFTER_FAILURE_S has
        passed. When a call has found that the group has no members or does not exist, later calls do nothing.
        """
        if self._members_checked or self._monotonic() < self._paused_until:
            return
        try:
            client = self._connected()
            # The list has the group's type, which decides how the group is described.
            listed = [group for group in client.list_groups().groups if group.group_id == self._group_id]
            group = client.describe_groups(listed)[self._group_id] if listed else None
        except (ClientError, ApiError) as error:
            self._warn("group_not_described", str(error))
            return
        if isinstance(group, Group):
            if group.members:
                raise OptionError(_members_text(self._group_id, counted(len(group.members), "member")))
        elif group is not None and not _is_missing(group):
            self._warn("group_not_described", str(group))
            return
        self._members_checked = True

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets that differ from the committed ones. Each offset is the next one to read. Never raises."""
        changed = {tp: offset for tp, offset in offsets.items() if self._committed.get(tp) != offset}
        if not changed or self._monotonic() < self._paused_until:
            return
        try:
            results = self._connected().commit(self._group_id, changed)
        except (ClientError, ApiError) as error:
            self._warn("group_commit_failed", str(error))
            return
        self._committed |= {tp: offset for tp, offset in results.items() if isinstance(offset, int)}
        failures = {tp: failure for tp, failure in results.items() if not isinstance(failure, int)}
        if failures:
            partition, failure = next(iter(failures.items()))
            if isinstance(failure, ApiError) and failure.code in HAS_MEMBERS:
                self._warn("group_commit_failed", _members_text(self._group_id, "members"))
            else:
                self._warn("group_commit_failed", f"{partition}: {failure}")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> GroupClient:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _warn(self, event: str, reason: str) -> None:
        """Log a warning. Send no request for the next PAUSE_AFTER_FAILURE_S. `event` is the first word of the line."""
        self._paused_until = self._monotonic() + PAUSE_AFTER_FAILURE_S
        logger.warning(
            "%s group=%s retry_after_s=%d: %s. The query continues, because its offsets are in its checkpoint",
            event,
            self._group_id,
            PAUSE_AFTER_FAILURE_S,
            reason,
        )


def _members_text(group_id: str, members: str) -> str:
    return f"option groupId: the group {group_id} has {members}: choose a group that no consumer uses"


def _is_missing(failure: object) -> bool:
    """Return whether a group could not be described because it does not exist yet."""
    return isinstance(failure, ApiError) and failure.code == ErrorCode.GROUP_ID_NOT_FOUND
