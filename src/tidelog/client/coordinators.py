"""Find the coordinators of groups and of transactional ids, and send them requests (see `operations`).

A key is a group id or a transactional id. It may be any string that a broker sends: empty, with a NUL, or not UTF-8
(see `ClientConnection.answer`). Each key has its own result or failure.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from tidelog.client.cluster import Address, Cluster
from tidelog.client.connection import NEWEST
from tidelog.client.each import Failure, Results, ask_each
from tidelog.client.error_codes import error_name
from tidelog.client.errors import ClientError, Unreachable
from tidelog.client.operations import Ask, AskAny, Backoff, Operation, Request, Retries
from tidelog.wire.errors import ApiError, ErrorCode, error_for
from tidelog.wire.message import Message
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

M = TypeVar("M", bound=Message)
V = TypeVar("V")


class KeyType(NamedTuple):
    """A type of keys that have coordinators."""

    code: int
    """The value of `key_type` in FindCoordinator."""
    noun: str
    """The word for a key of this type in error messages."""


GROUPS = KeyType(0, "group")
TRANSACTIONS = KeyType(1, "transactional id")

CONCURRENT_BACKOFF = Backoff(5, 100)
"""Pauses between attempts while the coordinator answers that it is still writing the markers of the transactional id's
previous transaction. The pauses are short, because writing the markers takes only milliseconds."""


class Coordinator(NamedTuple):
    broker_id: int
    address: Address


def find_coordinators(keys: Sequence[str], key_type: KeyType) -> Operation[Results[str, Coordinator]]:
    """Return the coordinator of each key, or the failure with which the broker answered. Raises NoBrokerReachable."""
    answer = yield AskAny(FindCoordinatorRequest(key_type=key_type.code, coordinator_keys=list(keys)))
    assert isinstance(answer, FindCoordinatorResponse)
    coordinators: Results[str, Coordinator] = {}
    for entry in answer.coordinators:
        reason = (
            f"the coordinator of {key_type.noun} {entry.key!r}: {entry.error_message or error_name(entry.error_code)}"
        )
        failure = error_for(entry.error_code, reason) if entry.error_code else None
        coordinators[entry.key] = failure or Coordinator(entry.node_id, Address(entry.host, entry.port))
    return coordinators


def cached_coordinators(
    cluster: Cluster, keys: Sequence[str], key_type: KeyType
) -> Operation[dict[str, Address | Failure]]:
    """Return the address of each key's coordinator, from the cache if possible. Raises NoBrokerReachable.

    A caller removes an address from the cache (`Cluster.coordinators`) when the broker fails or is not the coordinator.
    """
    unknown = [key for key in keys if (key_type.code, key) not in cluster.coordinators]
    failures: dict[str, Failure] = {}
    if unknown:
        coordinators = yield from find_coordinators(unknown, key_type)
        for key in unknown:
            coordinator = coordinators.get(key) or _not_named(key, key_type)
            if isinstance(coordinator, Coordinator):
                cluster.coordinators[key_type.code, key] = coordinator.address
            else:
                failures[key] = coordinator
    return {key: failures.get(key) or cluster.coordinators[key_type.code, key] for key in keys}


def ask_coordinator(
    cluster: Cluster,
    backoff: Backoff,
    key: str,
    key_type: KeyType,
    request: Message,
    response_class: type[M],
    codes: Callable[[M], list[tuple[str, int]]] | None = None,
    version_max: int = NEWEST,
) -> Operation[M]:
    """Send the request to the coordinator of the key, and repeat this until a response has no error. Return this
    response.

    `codes` returns a pair for each item of a response: the item's name for error messages, and its error code. Without
    `codes`, the response must have a field `error_code`. The address of the coordinator is cached, because a producer
    sends several requests to it. Raises ApiError for an error that is not retriable, even if the response also has
    retriable errors.
    """
    retries = Retries(cluster, backoff, ())
    concurrent_attempts = 0
    while True:
        try:
            address = (yield from cached_coordinators(cluster, [key], key_type))[key]
            if not isinstance(address, Address):
                raise address
            answers = yield Ask([Request(address, request, version_max)])
            assert isinstance(answers, list)
            (answer,) = answers
            if isinstance(answer, ClientError):
                raise answer
            assert isinstance(answer, response_class)
            subjects_and_codes = codes(answer) if codes else [(f"{key_type.noun} {key!r}", _error_code(answer))]
            errors = [error_for(code, f"{subject}: {error_name(code)}") for subject, code in subjects_and_codes if code]
            if errors:
                raise min(errors, key=lambda error: error.retriable)
            return answer
        except (ApiError, Unreachable) as error:
            pause = retries.after(error)
            if is_concurrent(error):
                pause = pause._replace(delay_ms=CONCURRENT_BACKOFF.delay_ms(concurrent_attempts))
                concurrent_attempts += 1
            else:
                cluster.coordinators.pop((key_type.code, key), None)
        yield pause


def is_concurrent(failure: object) -> bool:
    """Return whether `failure` means that the coordinator is still ending the previous transaction of the transactional
    id. In this case, the client need not look up the coordinator again.
    """
    return isinstance(failure, ApiError) and failure.code == ErrorCode.CONCURRENT_TRANSACTIONS


def _error_code(answer: Message) -> int:
    code: int = answer.error_code  # type: ignore[attr-defined]  # no base class has the field
    return code


def _not_named(key: str, key_type: KeyType) -> ApiError:
    return ApiError(f"the broker's answer does not state the coordinator of {key_type.noun} {key!r}")


def ask_coordinators(
    keys: Sequence[str],
    request: Callable[[list[str]], Message],
    response_class: type[M],
    read: Callable[[M, int], Results[str, V]],
    version_max: int = NEWEST,
    key_type: KeyType = GROUPS,
) -> Operation[Results[str, V]]:
    """Send each coordinator one request about its keys, and return the result of each key.

    `request` creates the request for some keys. `read` converts a response and the coordinator's broker id to results.
    """
    if not keys:
        return {}
    try:
        coordinators = yield from find_coordinators(keys, key_type)
    except Unreachable as error:
        return dict.fromkeys(keys, error)
    results: Results[str, V] = {}
    keys_by_coordinator: dict[Coordinator, list[str]] = {}
    for key in keys:
        coordinator = coordinators.get(key) or _not_named(key, key_type)
        if isinstance(coordinator, Coordinator):
            keys_by_coordinator.setdefault(coordinator, []).append(key)
        else:
            results[key] = coordinator
    answers = yield from ask_each(
        [(each.address, request(keys_by_coordinator[each])) for each in keys_by_coordinator],
        response_class,
        version_max,
    )
    for (coordinator, own_keys), answer in zip(keys_by_coordinator.items(), answers, strict=True):
        if isinstance(answer, ClientError):
            results |= dict.fromkeys(own_keys, answer)
        else:
            results_read = read(answer, coordinator.broker_id)
            results |= {
                key: results_read.get(key, ApiError(f"the answer does not mention {key_type.noun} {key!r}"))
                for key in own_keys
            }
    return results
