"""Questions about many things of which some may fail: every one gets an answer of its own, or the reason for none.

The operations of `operations` are all or nothing. These here serve who shows what there is: a group, a partition or a
broker that cannot answer must not hide the others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

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
"""Why one of many has no answer."""
Each: TypeAlias = dict[K, V | Failure]

ATTEMPTS_MAX = 5
"""For what passes within moments, as a leader that moves. What lasts is told instead of waited for."""
PASSING = frozenset(
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


def until_settled(
    backoff: Backoff, keys: Iterable[K], attempt: Callable[[list[K]], Operation[Each[K, V]]]
) -> Operation[Each[K, V]]:
    """What `attempt` finds for each key; those whose failure may pass are asked about again, a few times."""
    found: Each[K, V] = {}
    left = list(dict.fromkeys(keys))
    for number in range(ATTEMPTS_MAX):
        found |= yield from attempt(left)
        again = [key for key in left if _passes(found.get(key))]
        if not again or number + 1 == ATTEMPTS_MAX:
            break
        reason = found[again[0]]
        assert isinstance(reason, Exception)
        try:
            yield Pause(backoff.delay_ms(number), reason)
        except GaveUp:
            break
        left = again
    return found


def ask_each(
    requests: Sequence[tuple[Address, Message]], kind: type[M], version_max: int
) -> Operation[list[M | BrokerUnreachable]]:
    """One answer for each request, in their order; all are sent before the first answer is awaited."""
    if not requests:
        return []
    answers = yield Ask([Request(address, message, version_max) for address, message in requests])
    assert isinstance(answers, list)
    checked: list[M | BrokerUnreachable] = []
    for answer in answers:
        assert isinstance(answer, kind | BrokerUnreachable)
        checked.append(answer)
    return checked


def brokers(cluster: Cluster, backoff: Backoff) -> Operation[Mapping[int, Address]]:
    """Every broker of the cluster by its number, asked for anew. Raises GaveUp when none answers in time."""
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


def _passes(found: object) -> bool:
    if isinstance(found, ApiError):
        return found.code in PASSING
    return isinstance(found, BrokerUnreachable)
