"""The leader that a broker names when it refuses a request because it does not lead the partition."""

from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.api.leader_hints import UNKNOWN_LEADER, leader_of
from tidelog.metadata.image import NO_LEADER

TOPIC = "orders"


def services(replica: tuple[int, int] | None, image: tuple[int, int] | None) -> Any:
    """Return services whose replica and whose image know these leaders and leader epochs."""
    partition = None
    if replica is not None:
        partition = SimpleNamespace(replica=SimpleNamespace(leader=replica[0]), leader_epoch=replica[1])
    topics = {}
    if image is not None:
        topics[TOPIC] = SimpleNamespace(partitions=[SimpleNamespace(leader=image[0], leader_epoch=image[1])])
    return SimpleNamespace(
        partitions=SimpleNamespace(find=lambda topic, index: partition if index == 0 else None),
        metadata=SimpleNamespace(newest=SimpleNamespace(topics=topics)),
    )


@pytest.mark.parametrize(
    ("replica", "image", "expected"),
    [
        ((2, 5), (2, 5), (2, 5)),
        ((3, 6), (2, 5), (3, 6)),  # the replica has its new role before the image is published
        ((NO_LEADER, 5), (1, 5), (1, 5)),  # this broker leads, and its lease is over
        ((NO_LEADER, 6), (NO_LEADER, 6), (NO_LEADER, 6)),
        (None, (2, 5), (2, 5)),
        ((2, 5), None, (2, 5)),
        (None, None, UNKNOWN_LEADER),
    ],
)
def test_the_leader_that_is_named(
    replica: tuple[int, int] | None, image: tuple[int, int] | None, expected: tuple[int, int]
) -> None:
    assert leader_of(services(replica, image), TOPIC, 0) == expected


def test_a_partition_that_does_not_exist() -> None:
    assert leader_of(services(None, (2, 5)), TOPIC, 1) == UNKNOWN_LEADER
    assert leader_of(services(None, (2, 5)), TOPIC, -1) == UNKNOWN_LEADER
