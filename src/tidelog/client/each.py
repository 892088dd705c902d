"""Operations on many items that fail independently: each item has its own result, or its own failure.

The operations in the module `operations` succeed or fail as a whole. Commands that list groups, partitions or brokers
need operations on single items, because the failure of one item must not hide the results of the other items. This
module is the base of these operations.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import TypeAlias, TypeGuard, TypeVar

from tidelog.client.cluster import Address, Cluster
from tidelog.client.errors import BrokerUnreachable, ClientError, GaveUp, Unreachable
from tidelog.client.operations import Ask, AskAny, Backoff, Operation, Pause, Request
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.message import Message
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

K = TypeVar("K")
V = TypeVar("V")
M = TypeVar("M", bound=Message)
Failure: TypeAlias = ApiError | ClientError
"""The reason why an item has no result."""
Results: TypeAlias = dict[K, V | Failure]
"""A result or a failure for each item."""

ATTEMPTS_MAX = 5
"""Upper bound on the attempts for an item whose failure is usually temporary, such as a change of the leader. The
failure of the last attempt is returned."""
TEMPORARY_CODES = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Error codes of failures that are usually temporary, so that another attempt is worthwhile."""


def retry_temporary_failures(
    backoff: Backoff,
    keys: Iterable[K],
    attempt: Callable[[list[K]], Operation[Results[K, V]]],
    *,
    until_timeout: bool = False,
) -> Operation[Results[K, V]]:
    """Return the result of `attempt` for each key. A key with a temporary failure is attempted again, unless it was
    attempted ATTEMPTS_MAX times, or the call would time out. If the last attempt fails, too, the result is its failure.

    With `until_timeout`, every retriable error and every Unreachable is regarded as a temporary failure. Keys with such
    failures are attempted again until none is left. GaveUp is raised when the call times out.
    """
    is_temporary = is_retriable if until_timeout else _is_temporary
    results: Results[K, V] = {}
    remaining = list(dict.fromkeys(keys))
    for number in count():
        results |= yield from attempt(remaining)
        retry_keys = [key for key in remaining if is_temporary(results.get(key))]
        if not retry_keys or (number + 1 == ATTEMPTS_MAX and not until_timeout):
            break
        reason = results[retry_keys[0]]
        assert isinstance(reason, Exception)
        try:
            yield Pause(backoff.delay_ms(number), reason)
        except GaveUp:
            if until_timeout:
                raise
            break
        remaining = retry_keys
    return results


def is_retriable(result: object) -> TypeGuard[ApiError | Unreachable]:
    """Return whether the result is a failure after which another attempt may succeed."""
    return isinstance(result, Unreachable) or (isinstance(result, ApiError) and result.retriable)


def ask_each(
    requests: Sequence[tuple[Address, Message]], response_class: type[M], version_max: int
) -> Operation[list[M | ClientError]]:
    """Return one response or failure for each request, in the order of the requests. All requests are sent before
    the first response is awaited.
    """
    if not requests:
        return []
    answers = yield Ask([Request(address, message, version_max) for address, message in requests])
    assert isinstance(answers, list)
    checked: list[M | ClientError] = []
    for answer in answers:
        assert isinstance(answer, response_class | ClientError)
        checked.append(answer)
    return checked


def brokers(cluster: Cluster, backoff: Backoff) -> Operation[Mapping[int, Address]]:
    """Request the brokers from the cluster, and return their addresses by their ids. Raises GaveUp when no broker
    answers in time.
    """
    attempt = 0
    while True:
        try:
            response = yield AskAny(MetadataRequest(topics=[]))
            assert isinstance(response, MetadataResponse)
            cluster.update(response)
            return dict(sorted(cluster.brokers.items()))
        except Unreachable as error:
            pause = Pause(backoff.delay_ms(attempt), error)
            attempt += 1
        yield pause


def _is_temporary(result: object) -> bool:
    if isinstance(result, ApiError):
        return result.code in TEMPORARY_CODES
    return isinstance(result, BrokerUnreachable)
