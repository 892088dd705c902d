"""Group the results of a request's partitions by topic, in the order of the request."""

from collections.abc import Callable, Iterable, Sized
from typing import Any, Protocol, TypeVar

from tidelog.model.steps import Steps


class RequestedTopic(Protocol):
    @property
    def partitions(self) -> Sized: ...


T = TypeVar("T", bound=RequestedTopic)
R = TypeVar("R")
P = TypeVar("P")


def in_request_order(
    topics: Iterable[T], results: Iterable[R], make: Callable[[R], P]
) -> Steps[list[tuple[T, list[P]]]]:
    """Return a pair for each topic of a request: the topic, and the results of its partitions. `make` converts each
    result.

    `results` has one result for each partition that the request names, in the order of the request. A request may
    name a partition more than once.
    """
    remaining_results = iter(results)
    made: list[tuple[T, list[P]]] = []
    for topic in topics:
        parts: list[P] = []
        partitions: Any = topic.partitions
        # At the end of `partitions`, `zip` stops without taking a result. So the next topic gets the next result.
        for _, result in zip(partitions, remaining_results, strict=False):
            parts.append(make(result))
            yield
        made.append((topic, parts))
        yield
    return made
