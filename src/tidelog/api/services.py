"""The arguments of handlers: the broker's parts, and the request's context."""

from typing import TYPE_CHECKING, Final

from tidelog.api.encoded_topics import EncodedTopics

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.api.encoded_partitions import EncodedPartitions
    from tidelog.api.fetch_sessions import FetchSessions
    from tidelog.api.follower_fetch import Followers
    from tidelog.api.metering import Meter
    from tidelog.api.peer_brokers import PeerBroker, PeerBrokers, PendingClaim
    from tidelog.config.broker_config import BrokerConfig
    from tidelog.coordinator.groups import GroupCoordinators
    from tidelog.coordinator.transaction_guard import TransactionGuard
    from tidelog.coordinator.transactions import TransactionCoordinators
    from tidelog.metadata.link import ControllerLink, Requester
    from tidelog.metadata.producer_ids import ProducerIds
    from tidelog.metadata.publisher import MetadataCache
    from tidelog.quotas.client_quotas import ClientQuotas
    from tidelog.quotas.connections import ConnectionQuotas
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Piece, Runtime


class Services:
    """The parts of the broker that handlers use. `broker.BrokerServer` creates one object of this class."""

    __slots__ = (
        "_transaction_guard",
        "config",
        "connection_quotas",
        "controller",
        "encoded_partitions",
        "encoded_topics",
        "fetch_sessions",
        "followers",
        "groups",
        "metadata",
        "partitions",
        "peer_brokers",
        "producer_ids",
        "quotas",
        "runtime",
        "selects_replicas",
        "transactions",
        "turns",
    )

    def __init__(
        self,
        *,
        runtime: "Runtime",
        config: "BrokerConfig",
        metadata: "MetadataCache",
        controller: "ControllerLink",
        partitions: "Partitions",
        groups: "GroupCoordinators",
        transactions: "TransactionCoordinators",
        transaction_guard: "Callable[[], TransactionGuard]",
        producer_ids: "ProducerIds",
        fetch_sessions: "FetchSessions",
        quotas: "ClientQuotas",
        connection_quotas: "ConnectionQuotas",
    ) -> None:
        """`transaction_guard` returns the guard. The first call creates it, because most brokers need no guard."""
        self.runtime = runtime
        self.config = config
        self.metadata = metadata
        self.controller = controller
        self.partitions = partitions
        self.groups = groups
        self.transactions = transactions
        self._transaction_guard = transaction_guard
        self.producer_ids = producer_ids
        self.fetch_sessions = fetch_sessions
        self.encoded_topics: EncodedTopics[bytes] = EncodedTopics()
        """Stored parts of the responses of Metadata."""
        self.encoded_partitions: EncodedTopics[EncodedPartitions] = EncodedTopics()
        """Stored parts of the responses of DescribeTopicPartitions."""
        self.followers: Followers | None = None
        """The followers of this broker's partitions. If None, the broker has no followers and refuses fetches of
        followers."""
        self.selects_replicas = False
        """Whether consumers that name their rack are sent to followers in that rack (`replica.selector.class`)."""
        self.peer_brokers: PeerBrokers | None = None
        """Identifies the other brokers of the cluster on their connections. None if no other broker can use the
        metadata store."""
        self.quotas = quotas
        self.connection_quotas = connection_quotas
        self.turns = runtime.turns

    @property
    def transaction_guard(self) -> "TransactionGuard":
        return self._transaction_guard()


class Peer:
    """The other end of one connection: a client, or another broker."""

    __slots__ = ("broker", "claim", "client_host", "listener", "local_host", "local_port", "name")

    def __init__(
        self, client_host: str, client_port: int, local_host: str, local_port: int, listener: str = ""
    ) -> None:
        """`listener` is the name of the listener to which the client has connected. Answers contain the addresses that
        the brokers advertise for this listener. An empty name means the first listener of each broker.
        """
        self.listener = listener
        self.client_host = client_host
        self.local_host = local_host
        self.local_port = local_port
        self.name = f"{client_host}:{client_port}"
        self.broker: PeerBroker | None = None
        """The broker that has proved its identity on this connection; None for a client."""
        self.claim: PendingClaim | None = None
        """The identity that a broker has claimed on this connection but not proved yet."""


class RequestContext:
    """The header of one request, and its client."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id", "meter", "peer")

    def __init__(self, api_key: int, api_version: int, correlation_id: int, client_id: str | None, peer: Peer) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.peer = peer
        self.meter: Meter | None = None
        """Measures the request; None if the client has no quota."""

    @property
    def requester(self) -> "Requester | None":
        """The client's identity, for its quota of created and deleted partitions; None if the client has no quota."""
        return None if self.meter is None else self.meter.requester

    def throttle(self, throttle_ms: int) -> None:
        """Throttle the client for at least `throttle_ms`, which the controller has computed."""
        if self.meter is not None:
            self.meter.throttle(throttle_ms)

    @property
    def client_host(self) -> str:
        return self.peer.client_host


class Encoded:
    """An encoded response in pieces, without its header. The response's objects have been freed."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: "list[Piece]") -> None:
        self.pieces = pieces


class CloseConnection:
    """Returned by a handler to close the connection without a response, for example after a failed produce with
    acks=0.
    """

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


NO_RESPONSE: Final = None
"""Returned by a handler whose request needs no response (produce with acks=0)."""
