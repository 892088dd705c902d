"""The client on ordinary blocking sockets. It carries out `operations`, for one thread at a time.

`start_fetch` and `start_produce` send the request and return, so that the caller can work while the broker processes
the request. If a response states a throttle time, the client's next call to the same broker first waits until this time
has passed.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeAlias, TypeVar

from tidelog.client import groups, operations, partitions, transactional_writes, transactions
from tidelog.client.cluster import Address, Cluster, Topic
from tidelog.client.each import Results
from tidelog.client.errors import ClientError, GaveUp, NoBrokerReachable, Unreachable
from tidelog.client.link import Link
from tidelog.client.operations import (
    ACKS_ALL,
    READ_UNCOMMITTED,
    Answer,
    Ask,
    AskAny,
    Backoff,
    Fetched,
    FetchLimits,
    ListedOffset,
    Operation,
    Pause,
    Produced,
)
from tidelog.client.security import PLAINTEXT, AuthenticationFailed, Security
from tidelog.client.transactional_writes import TransactionalProducer
from tidelog.model.ids import TopicPartition
from tidelog.wire.message import Message
from tidelog.wire.primitives import Buffer

T = TypeVar("T")
Ticket: TypeAlias = tuple[Link, int] | ClientError
"""A sent request (its link and number), or the reason why it could not be sent."""

OUTAGE_NOTICE_AFTER_S = 5.0
"""If a call has taken this many seconds, and its latest attempt could not reach a broker, the client reports an outage
(only once in its lifetime), and the call continues to try. A broker restarts in less time, so a restart is usually not
reported."""
JITTER = 0.2
"""Pauses vary randomly by this fraction in both directions, so that clients that failed at the same time do not
retry at the same time."""


class ClientConfig(NamedTuple):
    """The client's settings. If Kafka's client has the same setting, the name and the default are Kafka's. Only the
    default of `client_id` differs from Kafka's.
    """

    client_id: str = "tidelog"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    """Time limit of any call except produce, with all its attempts."""
    delivery_timeout_ms: int = 120_000
    """Time limit of one produce call with all its attempts."""
    socket_connection_setup_timeout_ms: int = 10_000
    backoff: Backoff = Backoff()
    frame_bytes_max: int = 512 << 20
    """Upper bound on an accepted response frame, in bytes. A peer that states a larger size does not speak Kafka's
    protocol."""
    security: Security = PLAINTEXT


def parse_bootstrap(servers: str) -> list[Address]:
    """Parse `host:port[,host:port...]`; IPv6 hosts are in brackets. Raises ValueError, which names the wrong part."""
    seeds = []
    for server in filter(None, (s.strip() for s in servers.split(","))):
        host, colon, port = server.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"bootstrap server {server!r} is not HOST:PORT")
        seeds.append(Address(host.removeprefix("[").removesuffix("]"), int(port)))
    if not seeds:
        raise ValueError("no bootstrap server is given: HOST:PORT[,HOST:PORT...]")
    return seeds


class StartedOperation(Generic[T]):
    """An operation that has sent its first `Ask`, or that ended before it sent one."""

    def __init__(self, client: "Client", operation: Operation[T], timeout_ms: int) -> None:
        self._client = client
        self._operation = operation
        self._timeout_ms = timeout_ms
        self._tickets: list[Ticket] = []
        self._outcome: list[T] = []
        self._carry_out(None, self._deadline(), to_first_ask=True)

    def result(self) -> T:
        """Wait for the responses, retry as needed, and return the result. This method must be called only once.

        The whole timeout begins again with this call. Raises the errors of the methods of `Client`.
        """
        if not self._outcome:
            deadline = self._deadline()
            self._carry_out(self._client.collect(self._tickets, deadline), deadline, to_first_ask=False)
        return self._outcome.pop()

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_ms / 1000

    def _carry_out(self, answer: Answer, deadline: float, *, to_first_ask: bool) -> None:
        """Carry out the operation's effects until it returns. With `to_first_ask`, stop when the first `Ask` has been
        sent.
        """
        client = self._client
        try:
            effect = self._operation.send(answer)
            while True:
                try:
                    if isinstance(effect, Ask):
                        self._tickets = client.send_all(effect, deadline)
                        if to_first_ask:
                            return
                        answer = client.collect(self._tickets, deadline)
                    elif isinstance(effect, AskAny):
                        answer = client.ask_any(effect.request, deadline)
                    else:
                        client.pause(effect, deadline, self._timeout_ms)
                        answer = None
                except (GaveUp, NoBrokerReachable) as error:
                    effect = self._operation.throw(error)
                else:
                    effect = self._operation.send(answer)
        except StopIteration as stop:
            self._outcome.append(stop.value)


class Client:
    """A client of one cluster. It must not be used by several threads at the same time, or after a fork.

    Methods raise `wire.errors.ApiError` for an error code in a response, and `client.errors.ClientError` for any
    other failure.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[Address],
        config: ClientConfig | None = None,
        report_outage: Callable[[str], None] | None = None,
    ) -> None:
        """`report_outage` is called with a text for users, at most once, when a call continues to try although it
        cannot reach a broker (see OUTAGE_NOTICE_AFTER_S).
        """
        seeds = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else list(bootstrap)
        self.config = config or ClientConfig()
        self._report_outage = report_outage
        self.cluster = Cluster(seeds)
        self._links: dict[Address, Link] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def topics(self, names: Sequence[str], *, create: bool = False) -> dict[str, Topic]:
        """Request the topics from the cluster, not from the cache, and return them. Raises UnknownTopicOrPartition for
        a topic that does not exist.

        With `create`, a missing topic is created, if the broker creates topics on demand.
        """
        return self._run(operations.topics(self.cluster, self.config.backoff, names, create=create))

    def all_topics(self) -> dict[str, Topic]:
        return self._run(operations.all_topics(self.cluster, self.config.backoff))

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, ListedOffset]:
        """Return one offset for each partition. A timestamp is a time in ms, or `operations.EARLIEST` or `LATEST`.
        See `operations.list_offsets`.
        """
        return self._run(operations.list_offsets(self.cluster, self.config.backoff, timestamps, isolation))

    def fetch(self, partition: TopicPartition, offset: int, limits: FetchLimits) -> Fetched:
        """Fetch record batches of one partition. The view `records` is valid until the client's next call other than
        `start_fetch` and `start_produce`.

        Returns `operations.THROTTLED` if the client is over its fetch quota. Raises OffsetOutOfRange.
        """
        return self.start_fetch(partition, offset, limits).result()

    def start_fetch(self, partition: TopicPartition, offset: int, limits: FetchLimits) -> StartedOperation[Fetched]:
        """Send a fetch request. Only `result` reads the response from the socket. Until then, the view of an earlier
        response remains valid.
        """
        return self._start(operations.fetch(self.cluster, self.config.backoff, partition, offset, limits))

    def produce(self, batches: Mapping[TopicPartition, Buffer], acks: int = ACKS_ALL) -> dict[TopicPartition, Produced]:
        """Append one record batch to each partition, at least once."""
        return self.start_produce(batches, acks).result()

    def start_produce(
        self, batches: Mapping[TopicPartition, Buffer], acks: int = ACKS_ALL
    ) -> StartedOperation[dict[TopicPartition, Produced]]:
        """Send the batches. The buffers must not change until `result` has returned."""
        config = self.config
        operation = operations.produce(self.cluster, config.backoff, batches, acks, config.request_timeout_ms)
        return StartedOperation(self, operation, config.delivery_timeout_ms)

    def delete_offsets(self, group_id: str, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Delete committed offsets of a group. Return each partition's error code; 0 if its offset was deleted.

        Raises ApiError if the broker rejects the request for the whole group.
        """
        return self._run(groups.delete_offsets(self.cluster, self.config.backoff, group_id, topic_partitions))

    def list_groups(self) -> groups.GroupListing:
        return self._run(groups.list_groups(self.cluster, self.config.backoff))

    def describe_groups(self, listed: Sequence[groups.ListedGroup]) -> Results[str, groups.Group]:
        return self._run(groups.describe_groups(self.cluster, self.config.backoff, listed))

    def committed_offsets(self, group_ids: Sequence[str]) -> Results[str, Results[TopicPartition, int]]:
        return self._run(groups.committed_offsets(self.cluster, self.config.backoff, group_ids))

    def stable_offsets(self, group_id: str, topic: str, partitions: Sequence[int]) -> Results[TopicPartition, int]:
        """Return the committed offsets of some partitions of a topic. See `groups.stable_offsets`."""
        return self._run(groups.stable_offsets(self.cluster, self.config.backoff, group_id, topic, partitions))

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> Results[TopicPartition, int]:
        """Set the committed offsets of a group without members."""
        return self._run(groups.commit(self.cluster, self.config.backoff, group_id, offsets))

    def delete_groups(self, group_ids: Sequence[str]) -> Results[str, None]:
        return self._run(groups.delete_groups(self.cluster, self.config.backoff, group_ids))

    def list_transactions(self, wanted: transactions.TransactionFilter) -> transactions.TransactionListing:
        return self._run(transactions.list_transactions(self.cluster, self.config.backoff, wanted))

    def describe_transactions(
        self, transactional_ids: Sequence[str], *, until_timeout: bool = False
    ) -> Results[str, transactions.Transaction]:
        """Return the state of each transactional id. See `transactions.describe_transactions`."""
        return self._run(
            transactions.describe_transactions(
                self.cluster, self.config.backoff, transactional_ids, until_timeout=until_timeout
            )
        )

    def describe_producers(
        self, topic_partitions: Sequence[TopicPartition], broker_id: int | None = None
    ) -> Results[TopicPartition, list[transactions.ActiveProducer]]:
        """Return the producers of each partition, as its leader or the broker `broker_id` knows them."""
        backoff = self.config.backoff
        return self._run(transactions.describe_producers(self.cluster, backoff, topic_partitions, broker_id))

    def abort_in_partition(self, partition: TopicPartition, producer: transactions.ActiveProducer) -> None:
        """Write an abort marker to one partition. See `transactions.abort_in_partition`."""
        self._run(transactions.abort_in_partition(self.cluster, self.config.backoff, partition, producer))

    def fence(self, transactional_id: str, timeout_ms: int) -> transactions.ProducerIdAndEpoch:
        """Fence the producers of a transactional id, and abort its open transaction. See `transactions.fence`."""
        return self._run(transactions.fence(self.cluster, self.config.backoff, transactional_id, timeout_ms))

    def init_producer_id(self) -> tuple[int, int]:
        """Return a new producer id and its epoch, for idempotent writes without transactions. Raises ApiError."""
        return self._run(operations.init_producer_id(self.cluster, self.config.backoff))

    def init_producer(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        """Begin to produce in transactions. See `transactional_writes.init_producer`."""
        return self._run(
            transactional_writes.init_producer(self.cluster, self.config.backoff, transactional_id, timeout_ms)
        )

    def add_partitions(self, producer: TransactionalProducer, topic_partitions: Sequence[TopicPartition]) -> None:
        self._run(transactional_writes.add_partitions(self.cluster, self.config.backoff, producer, topic_partitions))

    def start_produce_in_transaction(
        self, producer: TransactionalProducer, batches: Mapping[TopicPartition, Buffer]
    ) -> StartedOperation[dict[TopicPartition, Produced]]:
        """Send the batches. The buffers must not change until `result` has returned."""
        config = self.config
        operation = transactional_writes.produce_in_transaction(
            self.cluster, config.backoff, producer, batches, config.request_timeout_ms
        )
        return StartedOperation(self, operation, config.delivery_timeout_ms)

    def commit_in_transaction(
        self,
        producer: TransactionalProducer,
        group_id: str,
        offsets: Mapping[TopicPartition, transactional_writes.CommittedOffset],
    ) -> None:
        self._run(transactional_writes.commit_offsets(self.cluster, self.config.backoff, producer, group_id, offsets))

    def end_transactions(
        self, producers: Sequence[TransactionalProducer], *, commit: bool
    ) -> Results[TransactionalProducer, TransactionalProducer]:
        """Commit or abort the transaction of each producer. See `transactional_writes.end_transactions`."""
        return self._run(
            transactional_writes.end_transactions(self.cluster, self.config.backoff, producers, commit=commit)
        )

    def abort_leftovers(self, producers: Sequence[TransactionalProducer]) -> Results[TransactionalProducer, None]:
        """Abort transactions of other processes. See `transactional_writes.abort_leftovers`."""
        return self._run(transactional_writes.abort_leftovers(self.cluster, self.config.backoff, producers))

    def offsets_with_metadata(
        self, group_id: str, *, require_stable: bool
    ) -> dict[TopicPartition, transactional_writes.CommittedOffset]:
        """Return the committed offsets of a group. See `transactional_writes.offsets_with_metadata`."""
        return self._run(
            transactional_writes.offsets_with_metadata(
                self.cluster, self.config.backoff, group_id, require_stable=require_stable
            )
        )

    def list_offsets_each(
        self, timestamps: Mapping[TopicPartition, int], isolation: int = READ_UNCOMMITTED
    ) -> Results[TopicPartition, ListedOffset]:
        """Return the results of `list_offsets`. A partition that fails has its failure in place of the offset."""
        return self._run(partitions.list_offsets(self.cluster, self.config.backoff, timestamps, isolation))

    def fetch_each(
        self, positions: Mapping[TopicPartition, int], limits: FetchLimits
    ) -> Results[TopicPartition, Fetched]:
        """Fetch from many partitions in one attempt. The views `records` are valid until the client's next call."""
        return self._run(partitions.fetch(self.cluster, positions, limits))

    def _run(self, operation: Operation[T]) -> T:
        return self._start(operation).result()

    def _start(self, operation: Operation[T]) -> StartedOperation[T]:
        return StartedOperation(self, operation, self.config.default_api_timeout_ms)

    def deadline(self) -> float:
        """Return the time of `time.monotonic` at which a call that begins now times out."""
        return time.monotonic() + self.config.default_api_timeout_ms / 1000

    def ask_any(self, request: Message, deadline: float) -> Message:
        """Send a request to the first broker that responds to it, and return the response. See `operations.AskAny`.

        If no broker responds, raises the first failure that is not Unreachable. If all failures are Unreachable,
        raises NoBrokerReachable. After a failed authentication, no other broker is tried.
        """
        failures: list[ClientError] = []
        for address in self.cluster.contacts():
            try:
                link = self._link(address, deadline)
                link.wait_out_throttle(deadline)
                return link.answer(
                    link.send(request, self._request_deadline(deadline)), self._request_deadline(deadline)
                )
            except AuthenticationFailed:
                raise
            except ClientError as error:
                self._drop(address)
                failures.append(error)
        for failure in failures:
            if not isinstance(failure, Unreachable):
                raise failure
        unreachable = NoBrokerReachable("; ".join(map(str, failures)))
        unreachable.remedy = next((f.remedy for f in failures if isinstance(f, Unreachable) and f.remedy), "")
        raise unreachable

    def send_all(self, ask: Ask, deadline: float) -> list[Ticket]:
        """Send all requests of an `operations.Ask`; `collect` waits for the responses."""
        tickets: list[Ticket] = []
        for request in ask.requests:
            try:
                link = self._link(request.address, deadline)
                link.wait_out_throttle(deadline)
                tickets.append(
                    (link, link.send(request.message, self._request_deadline(deadline), request.version_max))
                )
            except ClientError as error:
                self._drop(request.address)
                tickets.append(error)
        return tickets

    def collect(self, tickets: list[Ticket], deadline: float) -> list[Message | ClientError]:
        """For each ticket, return the response, or the reason why there is no response. The results are in the order
        of the tickets.
        """
        answers: list[Message | ClientError] = []
        for ticket in tickets:
            if isinstance(ticket, ClientError):
                answers.append(ticket)
                continue
            link, number = ticket
            try:
                answers.append(link.answer(number, self._request_deadline(deadline), reuse=True))
            except ClientError as error:
                self._drop(link.address)
                answers.append(error)
        return answers

    def pause(self, pause: Pause, deadline: float, timeout_ms: int) -> None:
        """Wait between two attempts, and report an outage if there is one (OUTAGE_NOTICE_AFTER_S).

        Raises GaveUp, without waiting, if the pause would end after `deadline`. `timeout_ms` is the call's whole
        timeout.
        """
        delay = pause.delay_ms / 1000 * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
        now = time.monotonic()
        if now + delay > deadline:
            raise GaveUp(f"no success within {timeout_ms} ms: {pause.because}") from pause.because
        if (
            self._report_outage
            and isinstance(pause.because, Unreachable)
            and deadline - now <= timeout_ms / 1000 - OUTAGE_NOTICE_AFTER_S
        ):
            report_outage, self._report_outage = self._report_outage, None
            report_outage(f"{pause.because}; still trying, for at most {timeout_ms / 1000:g} s in total")
        time.sleep(delay)

    def _link(self, address: Address, deadline: float) -> Link:
        """Return the connection to the broker. If it does not exist, open it."""
        link = self._links.get(address)
        if link is None or link.closed:
            config = self.config
            setup_deadline = min(deadline, time.monotonic() + config.socket_connection_setup_timeout_ms / 1000)
            link = self._links[address] = Link(
                address, config.client_id, config.frame_bytes_max, setup_deadline, config.security
            )
        return link

    def _drop(self, address: Address) -> None:
        link = self._links.pop(address, None)
        if link:
            link.close()

    def _request_deadline(self, deadline: float) -> float:
        """Return the deadline of a request that is sent now."""
        return min(deadline, time.monotonic() + self.config.request_timeout_ms / 1000)
