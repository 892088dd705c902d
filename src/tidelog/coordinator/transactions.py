"""The transaction coordinators of this broker: one for each partition of `__transaction_state` that it leads."""

from collections.abc import Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from tidelog.coordinator.host import CoordinatorHost
from tidelog.coordinator.transaction.settings import TransactionMemory, TransactionSettings
from tidelog.metadata.image import TRANSACTION_FEATURE, TRANSACTION_STATE
from tidelog.wire.errors import ApiError, CoordinatorLoadInProgress, ErrorCode, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tidelog.config.broker_config import BrokerConfig
    from tidelog.coordinator.decision import Producer, Reply
    from tidelog.coordinator.runtime import CoordinatorPartition, Perform
    from tidelog.coordinator.transaction.core import TransactionCore
    from tidelog.coordinator.transaction.records import Partition, Transaction
    from tidelog.metadata.link import ControllerLink
    from tidelog.metadata.producer_ids import ProducerIds
    from tidelog.metadata.publisher import MetadataCache
    from tidelog.replication.partitions import Partitions
    from tidelog.runtime.interfaces import Runtime

SWEEP_IDS_PER_TURN = 50
"""Transactional ids that a sweep examines in one turn of the event loop."""


class ListedTransaction(NamedTuple):
    transactional_id: str
    state: "Transaction"


class TransactionCoordinators:
    """The requests about transactions, as methods for the API handlers.

    The result of a request is passed to its `Reply`: during the call, or later, when the records of
    `__transaction_state` on which the result depends are committed. Every method with a transactional id raises
    ApiError if this broker does not coordinate the id at present.
    """

    def __init__(
        self,
        *,
        runtime: "Runtime",
        config: "BrokerConfig",
        partitions: "Partitions",
        metadata: "MetadataCache",
        controller: "ControllerLink",
        producer_ids: "ProducerIds",
        perform: "Perform",
        incarnation: str | None = None,
    ) -> None:
        """`perform` begins to write markers (`MarkerWriter.begin`). See `CoordinatorHost` for `incarnation`."""
        self._config = config
        self._runtime = runtime
        self._metadata = metadata
        self._producer_ids = producer_ids
        self._timeout_max_ms = config.get("transaction.max.timeout.ms")
        self._memory = TransactionMemory()
        self._settings = TransactionSettings(id_expiration_ms=config.get("transactional.id.expiration.ms"))
        self.host: CoordinatorHost[TransactionCore] = CoordinatorHost(
            TRANSACTION_STATE,
            runtime=runtime,
            node_id=config.node_id,
            partitions=partitions,
            metadata=metadata,
            controller=controller,
            new_core=self._new_core,
            commit_timeout_ms=config.get("request.timeout.ms"),
            incarnation=incarnation,
            perform=perform,
        )

    def start(self) -> None:
        """Start the periodic search for transactions that take too long, and for ids that nobody uses any more."""
        config = self._config
        self.host.sweep_periodically(
            config.get("transaction.abort.timed.out.transaction.cleanup.interval.ms"), self.abort_timed_out
        )
        self.host.sweep_periodically(
            config.get("transaction.remove.expired.transaction.cleanup.interval.ms"), self.remove_expired
        )

    def close(self) -> None:
        """Answer all waiting requests, and refuse new requests from now on."""
        self.host.close()

    # Requests

    async def initialize(self, transactional_id: str, timeout_ms: int, expected: "Producer", reply: "Reply") -> None:
        """Give the producer an id and an epoch (InitProducerId). On success, `reply` is called with a Producer that
        contains both.
        """
        from tidelog.coordinator.transaction.core import InitCall

        _check_id(transactional_id)
        if not 0 < timeout_ms <= self._timeout_max_ms:
            raise ApiError(
                f"the transaction timeout {timeout_ms} ms is not between 1 and {self._timeout_max_ms} "
                "(transaction.max.timeout.ms)",
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            )
        coordinator = self.host.coordinator(transactional_id)
        fresh_id = None
        if coordinator.core.needs_producer_id(transactional_id, expected):
            fresh_id = await self._producer_ids.next()
            # During the wait, another broker may have become the coordinator. If so, this call raises ApiError.
            coordinator = self.host.coordinator(transactional_id)
        call = InitCall(transactional_id, timeout_ms, expected, fresh_id)
        coordinator.apply(coordinator.core.initialize(call, reply, coordinator.now()))

    def add_partitions(
        self,
        transactional_id: str,
        producer: "Producer",
        partitions: "Collection[Partition]",
        version: int,
        reply: "Reply",
    ) -> None:
        """Add partitions to the producer's open transaction. If the producer has no open transaction, begin one. On
        success, `reply` is called with None.

        `version` is the transaction version that the client uses: V2, or 0 for every older version.
        """
        _check_id(transactional_id)
        coordinator = self.host.coordinator(transactional_id)
        core, now = coordinator.core, coordinator.now()
        coordinator.apply(core.add_partitions(transactional_id, producer, partitions, version, reply, now))

    def verify_partitions(
        self, transactional_id: str, producer: "Producer", partitions: "Collection[Partition]", reply: "Reply"
    ) -> None:
        """Find out which partitions belong to the producer's transaction. On success, `reply` is called with a list
        that contains one ErrorCode for each partition.
        """
        _check_id(transactional_id)
        coordinator = self.host.coordinator(transactional_id)
        coordinator.apply(coordinator.core.verify_partitions(transactional_id, producer, partitions, reply))

    async def end(
        self, transactional_id: str, producer: "Producer", *, commit: bool, version: int, reply: "Reply"
    ) -> None:
        """Commit or abort the producer's transaction (EndTxn). On success, `reply` is called with the Producer (id and
        epoch) with which the client continues.
        """
        from tidelog.coordinator.transaction.records import V2

        _check_id(transactional_id)
        coordinator = self.host.coordinator(transactional_id)
        next_id = None
        if version >= V2 and coordinator.core.needs_next_producer_id(transactional_id):
            next_id = await self._producer_ids.next()
            coordinator = self.host.coordinator(transactional_id)  # again; see `initialize`
        decision = coordinator.core.end(
            transactional_id,
            producer,
            commit=commit,
            version=version,
            next_id=next_id,
            reply=reply,
            now=coordinator.now(),
        )
        coordinator.apply(decision)

    def describe(self, transactional_id: str, reply: "Reply") -> None:
        """Describe a transaction. `reply` is called with a Transaction, or with the ApiError
        TRANSACTIONAL_ID_NOT_FOUND.
        """
        _check_id(transactional_id)
        coordinator = self.host.coordinator(transactional_id)
        state, awaited_offset = coordinator.core.find(transactional_id)
        answer: Transaction | ApiError | None = state
        if state is None:
            answer = ApiError("", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)  # without a message, as in Kafka
        coordinator.answer(reply, answer, awaited_offset)

    def listing(self) -> Iterator[ListedTransaction]:
        """Yield the transactional ids of this broker, with their states.

        Raises CoordinatorLoadInProgress while some partitions are being loaded. Partitions that are offline, or whose
        load has failed, are omitted, so that one failed log does not hide the transactions of all others.
        """
        for coordinator in self.host.coordinators():
            if coordinator.is_loading:
                raise CoordinatorLoadInProgress(f"{coordinator.name} is being loaded")
        for coordinator in self.host.loaded():
            for transactional_id, state in coordinator.core.listing():
                yield ListedTransaction(transactional_id, state)

    # Sweeps

    async def abort_timed_out(self) -> None:
        """Abort the transactions that are open for longer than their producer's timeout."""
        async for coordinator, ids in self._ids_in_turns():
            coordinator.apply_all(coordinator.core.abort_timed_out(ids, coordinator.now()))

    async def remove_expired(self) -> None:
        """Forget the transactional ids whose last use is longer ago than transactional.id.expiration.ms."""
        async for coordinator, ids in self._ids_in_turns():
            coordinator.apply(coordinator.core.remove_expired(ids, coordinator.now()))

    async def _ids_in_turns(self) -> "AsyncIterator[tuple[CoordinatorPartition[TransactionCore], list[str]]]":
        """In each turn of the event loop, yield one coordinator and some of its transactional ids, until all were
        yielded.
        """
        for coordinator in self.host.loaded():
            ids = iter(coordinator.core.transactional_ids())
            while coordinator.is_loaded and (some := list(islice(ids, SWEEP_IDS_PER_TURN))):
                yield coordinator, some
                await self._runtime.tasks.sleep(0)

    def _new_core(self) -> "TransactionCore":
        from tidelog.coordinator.transaction.core import TransactionCore

        return TransactionCore(
            self._settings, lambda: self._metadata.image.feature_level(TRANSACTION_FEATURE), self._memory
        )


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequest("the transactional id is empty")
