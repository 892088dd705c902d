"""The heartbeats that one active controller has received, and its decisions about them. Pure."""

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.registration import Heartbeat, HeartbeatReply, heartbeat, registered_broker
from tidelog.model.steps import Steps


class Heartbeats:
    """How far each broker has followed the journal, as its last heartbeat to this controller said.

    A new controller knows nothing of the heartbeats before. Each broker sends the next one soon.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._followed: dict[int, int] = {}
        """The position up to which each broker has applied the journal."""
        self._shutdown_positions: dict[tuple[int, int], int] = {}
        """For each broker in controlled shutdown, by id and epoch: a position after the entry that gave its
        leaderships away."""

    def decide(self, image: MetadataImage, request: Heartbeat) -> Steps[JournalDecision[HeartbeatReply]]:
        """Store what the heartbeat says, and decide as `registration.heartbeat`.

        Raises ApiError (STALE_BROKER_EPOCH).
        """
        broker = registered_broker(image, request.broker_id, request.broker_epoch)
        self._followed[broker.broker_id] = request.followed
        position = 0
        if broker.in_controlled_shutdown:
            key = broker.broker_id, broker.epoch
            position = self._shutdown_positions.setdefault(key, image.position)
        return (
            yield from heartbeat(image, request, self._config, shutdown_position=position, followed_by=self._followed)
        )
