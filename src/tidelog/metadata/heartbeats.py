"""The heartbeats that one active controller has received, and its decisions about them. Pure."""

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.quorum import QuorumState, quorum_state
from tidelog.metadata.registration import Heartbeat, HeartbeatReply, heartbeat, registered_broker
from tidelog.model.steps import Steps


class Heartbeats:
    """Stores how far each broker has followed the journal, according to its last heartbeat to this controller.

    A new controller does not know the heartbeats that earlier controllers received. It soon receives the next heartbeat
    of each broker.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._followed_positions: dict[int, int] = {}
        """The position up to which each broker has applied the journal; see `Heartbeat.followed`."""
        self._shutdown_positions: dict[tuple[int, int], int] = {}
        """For each broker in controlled shutdown (broker id and broker epoch): a journal position after the entry with
        which other brokers became the leaders of this broker's partitions."""

    def quorum_state(self, image: MetadataImage) -> QuorumState:
        return quorum_state(image, self._followed_positions)

    def decide(self, image: MetadataImage, request: Heartbeat) -> Steps[JournalDecision[HeartbeatReply]]:
        """Store the journal position that the heartbeat reports, and return the decision of `registration.heartbeat`.

        Raises ApiError (STALE_BROKER_EPOCH).
        """
        broker = registered_broker(image, request.broker_id, request.broker_epoch)
        self._followed_positions[broker.broker_id] = request.followed
        position = 0
        if broker.in_controlled_shutdown:
            key = broker.broker_id, broker.epoch
            position = self._shutdown_positions.setdefault(key, image.position)
        return (
            yield from heartbeat(
                image, request, self._config, shutdown_position=position, followed_positions=self._followed_positions
            )
        )
