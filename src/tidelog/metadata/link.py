"""The controller's interface for the other parts of a broker. Requests and answers are values, so that the controller
may be in this process or on another broker.

Handlers and other parts of the broker use a `ControllerLink`. `ControllerRouter` passes each request to this broker's
own controller, or through a `ControllerChannel` to the broker that has the controller lease.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from tidelog.metadata.alterations import Alteration, AlterationResult
from tidelog.metadata.controller import MorePartitions, NewTopic, TopicChoice, TopicResult
from tidelog.metadata.elections import ElectionResult
from tidelog.metadata.features import LevelChange
from tidelog.metadata.image import BrokerRegistration
from tidelog.metadata.isr_changes import IsrProposal, IsrResult
from tidelog.metadata.publisher import MetadataCache, Publisher
from tidelog.metadata.quorum import QuorumState
from tidelog.metadata.quota_alterations import QuotaAlteration, QuotaResult
from tidelog.metadata.reassignment import Reassignment, ReassignmentResult
from tidelog.metadata.registration import Heartbeat, HeartbeatReply, Registration
from tidelog.model.ids import TopicId
from tidelog.runtime.interfaces import Runtime
from tidelog.wire.errors import ApiError, ErrorCode

R = TypeVar("R")

NO_CONTROLLER: Final = (
    "metadata cannot be changed: no broker is the controller at present; if this lasts, check the metadata store"
)

FORWARD_TIMEOUT_MS: Final = 30_000
"""Longest time that a request without a timeout of its own waits for a remote controller, in milliseconds."""
CONTROLLER_TIMEOUT_MS: Final = 5_000
"""Longest time that FindCoordinator and InitProducerId wait for a remote controller, in milliseconds. It is short,
since clients repeat these requests, and no other request of their connection is answered during the wait."""
CONTROLLER_WAIT_S: Final = 15.0
"""Longest time, in seconds, that a request waits until it can be sent to a controller. If the controller fails and the
metadata store is available, another broker becomes the controller within this time. After this time, the client gets an
error that says the reason. The usual timeouts of clients are longer."""
RETRY_S: Final = 0.1
"""Pause before the next attempt to find the controller, in seconds."""


class Requester(NamedTuple):
    """The client whose quota (`controller_mutation_rate`, KIP-599) a request uses."""

    user: str
    client_id: str
    is_strict: bool
    """Whether requests are refused while the client exceeds its quota. Otherwise they are executed, and only the
    throttle time grows."""


class CreateTopics(NamedTuple):
    topics: Sequence[NewTopic]
    validate_only: bool = False
    timeout_ms: int | None = None
    requester: Requester | None = None
    """The client whose quota the request uses; None if no quota applies."""


class EnsureTopics(NamedTuple):
    """Create the topics that do not exist. An internal topic gets the settings that the coordinators need
    (`internal_topics.py`), any other topic gets the controller's defaults.

    For a topic that exists, the result is a success. The caller must have checked that topics may be created
    automatically.
    """

    names: Sequence[str]
    requester: Requester | None = None
    timeout_ms: int | None = None


class DeleteTopics(NamedTuple):
    choices: Sequence[TopicChoice]
    timeout_ms: int | None = None
    requester: Requester | None = None


class CreatePartitions(NamedTuple):
    requests: Sequence[MorePartitions]
    validate_only: bool = False
    timeout_ms: int | None = None
    requester: Requester | None = None


class AlterConfigs(NamedTuple):
    alterations: Sequence[Alteration]
    node_id: int
    """The broker to which the client has sent the request. The request may alter the settings of this broker or of all
    brokers together, but not settings that another broker has for itself."""
    validate_only: bool = False


class AlterQuotas(NamedTuple):
    alterations: Sequence[QuotaAlteration]
    validate_only: bool = False


class AllocateProducerIds(NamedTuple):
    """Allocate a block of producer ids that are not allocated to any other broker, now or later. The result is the
    first id of the block and the id after its last one.
    """

    node_id: int
    timeout_ms: int | None = None


class RegisterBroker(NamedTuple):
    """Register a broker. The result is its broker epoch.

    The broker must have its lease in the store. While the level of `tidelog.metadata.version` is 0, a broker that sends
    this request must be ready to serve its partitions. At higher levels, a later heartbeat reports that it is ready.
    """

    registration: Registration
    renew_leaderships: bool = False
    """Whether new leader epochs must begin for the partitions that the broker leads, because it was restarted. This has
    an effect only at level 0. At higher levels, a restarted broker leads no partition at first."""


class BrokerHeartbeat(NamedTuple):
    heartbeat: Heartbeat
    timeout_ms: int | None = None


class AlterPartition(NamedTuple):
    """Change the in-sync replicas of partitions that the broker leads. Results are in the order of the proposals."""

    broker_id: int
    broker_epoch: int
    proposals: Sequence[IsrProposal]
    timeout_ms: int | None = None


class ElectLeaders(NamedTuple):
    """Elect leaders on an administrator's request. Each partition that `partitions` names has a result."""

    election_type: int
    """`elections.PREFERRED` or `elections.UNCLEAN`. Any other type is refused."""
    partitions: Sequence[tuple[str, int]] | None
    """Topic and partition. None means all partitions of the cluster."""
    timeout_ms: int | None = None


class AlterReassignments(NamedTuple):
    """Begin, change or cancel reassignments of replicas. The results are in the order of the request."""

    reassignments: Sequence[Reassignment]
    allow_factor_change: bool = True
    """Whether a reassignment may change the number of replicas."""
    timeout_ms: int | None = None


class UnregisterBroker(NamedTuple):
    """Remove the registration of a broker that will not return."""

    broker_id: int


class UpdateFeatures(NamedTuple):
    """Finalize levels of the cluster's features, all or none."""

    changes: Sequence[LevelChange]
    validate_only: bool = False
    timeout_ms: int | None = None


class DescribeQuorum(NamedTuple):
    """Describe the controller and how far the brokers have followed the journal. The request changes nothing."""

    timeout_ms: int | None = None


class CatchUp(NamedTuple):
    """Wait until the broker that asks has processed every change that the controller had decided when it got this
    request. The request changes nothing.
    """

    timeout_ms: int | None = None


class ReplicasOffline(NamedTuple):
    """Report that the logs of these replicas of the broker cannot be used. The controller removes the broker from the
    ISRs of these partitions, and elects other leaders. It refuses ISR proposals that were made before this report.
    """

    broker_id: int
    broker_epoch: int
    replicas: Sequence[tuple[TopicId, int]]
    """Topic id and index of each partition."""
    timeout_ms: int | None = None


ControllerRequest: TypeAlias = (
    CreateTopics
    | EnsureTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | AlterQuotas
    | AllocateProducerIds
    | RegisterBroker
    | BrokerHeartbeat
    | AlterPartition
    | ElectLeaders
    | AlterReassignments
    | UnregisterBroker
    | UpdateFeatures
    | ReplicasOffline
    | DescribeQuorum
    | CatchUp
)

BROKER_REQUESTS: Final = (AllocateProducerIds, RegisterBroker, BrokerHeartbeat, AlterPartition, ReplicasOffline)
"""Requests that a broker makes on its own, not for a client. Their answers do not wait until the brokers have created
or removed files of partitions: otherwise a broker with a slow disk could not change an ISR."""

REPEATABLE: Final = (EnsureTopics, AllocateProducerIds, RegisterBroker, BrokerHeartbeat, DescribeQuorum, CatchUp)
"""Requests that are sent again when their answer was lost. Executing such a request twice does no harm."""


class Answer(NamedTuple, Generic[R]):
    """The controller's answer: the value, or an error that concerns the whole request.

    After most errors, the request has changed nothing and will not change anything later. After REQUEST_TIMED_OUT, it
    may have been executed, or may be executed later. The meaning of KAFKA_STORAGE_ERROR depends on the store. If
    several brokers share the store, the request has changed nothing. If a broker uses its store alone, the request may
    have been executed: after StoreFailed, it is unknown whether the request's records are stored.
    """

    value: R | None
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    throttle_ms: int = 0
    """Throttle time of the requester."""
    position: int = 0
    """The answer is based on the journal's entries before this position."""

    def result(self) -> R:
        """Return the value. Raises ApiError."""
        if self.error is not ErrorCode.NONE:
            raise ApiError(self.message, self.error)
        return cast(R, self.value)


def topic_results(answer: Answer[list[TopicResult]], topics: Iterable[TopicChoice]) -> list[TopicResult]:
    """Return the results of a request for `topics`. If the whole request failed, each topic gets the request's error; a
    topic that is repeated appears only once.
    """
    if answer.value is not None:
        return answer.value
    return [TopicResult(*topic, answer.error, answer.message or None) for topic in dict.fromkeys(topics)]


class ControllerLink(Protocol):
    """The controller of the cluster. Its methods raise no exceptions: an error is a part of the answer."""

    async def create_topics(self, request: CreateTopics) -> Answer[list[TopicResult]]:
        """Create topics. The answer is REQUEST_TIMED_OUT if, after `timeout_ms`, some of the new partitions have no
        leader yet.

        After this answer, the topics may have been created, or may be created later.
        """

    async def ensure_topics(self, request: EnsureTopics) -> Answer[list[TopicResult]]: ...
    async def delete_topics(self, request: DeleteTopics) -> Answer[list[TopicResult]]: ...
    async def create_partitions(self, request: CreatePartitions) -> Answer[list[TopicResult]]: ...
    async def alter_configs(self, request: AlterConfigs) -> Answer[list[AlterationResult]]: ...
    async def alter_quotas(self, request: AlterQuotas) -> Answer[list[QuotaResult]]: ...
    async def allocate_producer_ids(self, request: AllocateProducerIds) -> Answer[tuple[int, int]]: ...
    async def register(self, request: RegisterBroker) -> Answer[int]: ...
    async def heartbeat(self, request: BrokerHeartbeat) -> Answer[HeartbeatReply]: ...
    async def alter_partition(self, request: AlterPartition) -> Answer[list[IsrResult]]: ...
    async def elect_leaders(self, request: ElectLeaders) -> Answer[list[ElectionResult]]: ...
    async def alter_reassignments(self, request: AlterReassignments) -> Answer[list[ReassignmentResult]]: ...
    async def unregister_broker(self, request: UnregisterBroker) -> Answer[None]: ...
    async def update_features(self, request: UpdateFeatures) -> Answer[None]: ...
    async def replicas_offline(self, request: ReplicasOffline) -> Answer[None]: ...
    async def describe_quorum(self, request: DescribeQuorum) -> Answer[QuorumState]: ...
    async def catch_up(self, request: CatchUp) -> Answer[None]: ...


class ControllerUnreachable(Exception):
    """The request was not sent, so it has changed nothing."""


class AnswerLost(Exception):
    """The connection ended before the answer arrived. The request may have been executed, or may be executed later."""


class ControllerChannel(Protocol):
    """A connection to the controller on another broker."""

    async def ask(self, broker: BrokerRegistration, request: ControllerRequest, timeout_s: float) -> Answer[Any]:
        """Send the request to `broker`, and return the answer of its controller.

        Raises ControllerUnreachable if the request was not sent. Raises AnswerLost if the request was sent, but no
        valid answer has arrived before the connection ends or `timeout_s` has passed.
        """


class RequestExecutor(Protocol):
    """The controller in this process. It is active only while this broker has the cluster's controller lease."""

    @property
    def is_active(self) -> bool: ...

    async def execute(self, request: ControllerRequest) -> Answer[Any]:
        """Execute the request. The answer is NOT_CONTROLLER if this process is not the controller."""


class ControllerRouter:
    """The `ControllerLink` of one broker.

    The answer of a remote controller is returned when this broker has processed the metadata on which the answer is
    based. So if a client has created a topic, its next request to the same broker can use the topic. The answer to
    a broker's own request (BROKER_REQUESTS) is returned earlier: as soon as the roles of this broker's partitions
    correspond to this metadata.
    """

    def __init__(
        self,
        node_id: int,
        local: RequestExecutor,
        channel: ControllerChannel | None,
        publisher: Publisher,
        cache: MetadataCache,
        runtime: Runtime,
    ) -> None:
        """`channel` is None if the store belongs to this broker alone."""
        self._node_id = node_id
        self._local = local
        self._channel = channel
        self._publisher = publisher
        self._cache = cache
        self._clock = runtime.clock
        self._tasks = runtime.tasks

    async def create_topics(self, request: CreateTopics) -> Answer[list[TopicResult]]:
        return await self._ask(request)

    async def ensure_topics(self, request: EnsureTopics) -> Answer[list[TopicResult]]:
        return await self._ask(request)

    async def delete_topics(self, request: DeleteTopics) -> Answer[list[TopicResult]]:
        return await self._ask(request)

    async def create_partitions(self, request: CreatePartitions) -> Answer[list[TopicResult]]:
        return await self._ask(request)

    async def alter_configs(self, request: AlterConfigs) -> Answer[list[AlterationResult]]:
        return await self._ask(request)

    async def alter_quotas(self, request: AlterQuotas) -> Answer[list[QuotaResult]]:
        return await self._ask(request)

    async def allocate_producer_ids(self, request: AllocateProducerIds) -> Answer[tuple[int, int]]:
        return await self._ask(request)

    async def register(self, request: RegisterBroker) -> Answer[int]:
        return await self._ask(request)

    async def heartbeat(self, request: BrokerHeartbeat) -> Answer[HeartbeatReply]:
        return await self._ask(request)

    async def alter_partition(self, request: AlterPartition) -> Answer[list[IsrResult]]:
        return await self._ask(request)

    async def elect_leaders(self, request: ElectLeaders) -> Answer[list[ElectionResult]]:
        return await self._ask(request)

    async def alter_reassignments(self, request: AlterReassignments) -> Answer[list[ReassignmentResult]]:
        return await self._ask(request)

    async def unregister_broker(self, request: UnregisterBroker) -> Answer[None]:
        return await self._ask(request)

    async def update_features(self, request: UpdateFeatures) -> Answer[None]:
        return await self._ask(request)

    async def replicas_offline(self, request: ReplicasOffline) -> Answer[None]:
        return await self._ask(request)

    async def describe_quorum(self, request: DescribeQuorum) -> Answer[QuorumState]:
        return await self._ask(request)

    async def catch_up(self, request: CatchUp) -> Answer[None]:
        answer = await self._ask(request)
        if answer.error is ErrorCode.NONE:
            # The controller of this process answers this request at once, perhaps before all parts of the broker have
            # processed its last change.
            await self._publisher.wait_for(answer.position)
        return answer

    async def _ask(self, request: ControllerRequest) -> Answer[Any]:
        """Ask the controller, and try again while no broker is the controller.

        A request may be sent until CONTROLLER_WAIT_S have passed. If its answer was lost, a REPEATABLE request is sent
        again until its timeout, and any other request gets REQUEST_TIMED_OUT.
        """
        if self._channel is None:
            return await self._local.execute(request)
        timeout_ms: int | None = getattr(request, "timeout_ms", None)
        if timeout_ms is not None and timeout_ms <= 0:
            return Answer(None, ErrorCode.REQUEST_TIMED_OUT)
        began_s = self._clock.monotonic()
        deadline_s = began_s + (FORWARD_TIMEOUT_MS if timeout_ms is None else timeout_ms) / 1000
        send_deadline_s = min(deadline_s, began_s + CONTROLLER_WAIT_S)
        may_be_executed = False
        while True:
            try:
                answer = await self._ask_once(request, self._channel, deadline_s)
            except AnswerLost as error:
                answer = Answer(None, ErrorCode.REQUEST_TIMED_OUT, f"the controller has not answered: {error}")
                may_be_executed = True
                if not isinstance(request, REPEATABLE):
                    return answer
            else:
                if answer.error is not ErrorCode.NOT_CONTROLLER:
                    return answer
            if self._clock.monotonic() + RETRY_S >= (deadline_s if may_be_executed else send_deadline_s):
                return answer._replace(error=ErrorCode.REQUEST_TIMED_OUT) if may_be_executed else answer
            await self._tasks.sleep(RETRY_S)

    async def _ask_once(self, request: ControllerRequest, channel: ControllerChannel, deadline_s: float) -> Answer[Any]:
        """Ask the controller: this broker's own if it is active, otherwise the broker that the image names.

        The answer is NOT_CONTROLLER if the image names no other broker, or if the named broker cannot be reached or is
        not the controller. The caller must then try again later. Raises AnswerLost.
        """
        if self._local.is_active:
            return await self._local.execute(request)
        image = self._cache.newest
        controller = image.brokers.get(image.controller_id)
        if controller is None or controller.broker_id == self._node_id:
            return Answer(None, ErrorCode.NOT_CONTROLLER, NO_CONTROLLER)
        try:
            answer = await channel.ask(controller, request, max(deadline_s - self._clock.monotonic(), 0))
        except ControllerUnreachable as error:
            message = (
                f"metadata cannot be changed: the controller, broker {controller.broker_id}, cannot be reached: {error}"
            )
            return Answer(None, ErrorCode.NOT_CONTROLLER, message)
        return await self._when_followed(request, answer, deadline_s)

    async def _when_followed(self, request: ControllerRequest, answer: Answer[Any], deadline_s: float) -> Answer[Any]:
        """Return the answer when this broker has processed the metadata on which the answer is based. If the
        deadline comes first, return REQUEST_TIMED_OUT instead of a success, but return an error unchanged.
        """
        if answer.position <= self._cache.processed.position:
            return answer
        wait_for = self._publisher.wait_for_roles if isinstance(request, BROKER_REQUESTS) else self._publisher.wait_for
        following = self._tasks.spawn(wait_for(answer.position), name="follow-controller")
        done, _ = await asyncio.wait((following,), timeout=max(deadline_s - self._clock.monotonic(), 0))
        if done:
            return answer
        following.cancel()
        if answer.error:
            return answer
        message = (
            "the controller has answered, but this broker has not processed the metadata of the answer yet; "
            "the requested changes may already have been made"
        )
        return answer._replace(value=None, error=ErrorCode.REQUEST_TIMED_OUT, message=message)
