"""The active controller's knowledge of the brokers that follow the metadata journal. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelog.metadata.image import MetadataImage

UNKNOWN_POSITION = -1


class JournalFollower(NamedTuple):
    broker_id: int
    position: int
    """The position up to which the broker has applied the journal, exclusive; UNKNOWN_POSITION before its first
    heartbeat to this controller."""


class QuorumState(NamedTuple):
    """The controller, and the brokers that could become the controller: all brokers that are not fenced. The controller
    is one of `brokers` even if it is fenced.
    """

    controller_id: int
    controller_epoch: int
    end_position: int
    """The exclusive end of the journal."""
    brokers: Sequence[JournalFollower]


def quorum_state(image: MetadataImage, positions: Mapping[int, int]) -> QuorumState:
    """Return the state. `positions` has, by broker id, the position that the broker sent in its last heartbeat."""
    brokers = []
    for broker in image.brokers.values():
        if broker.broker_id == image.controller_id:
            brokers.append(JournalFollower(broker.broker_id, image.position))
        elif not broker.fenced:
            brokers.append(JournalFollower(broker.broker_id, positions.get(broker.broker_id, UNKNOWN_POSITION)))
    return QuorumState(image.controller_id, image.controller_epoch, image.position, brokers)
