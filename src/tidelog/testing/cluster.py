"""A cluster of brokers for a `with` block, each in a process of its own: `with Cluster(3) as cluster:`."""

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidelog.testing.broker import Broker, run_in_thread
from tidelog.testing.failure import BrokerFailedError
from tidelog.testing.ownership import OwnedByProcess

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

__all__ = ["Cluster"]

STORE_FILE = "cluster.sqlite"
REPLICAS_MAX = 3
SESSION_MS = 4000
"""A broker that sends no heartbeat for this time, in milliseconds, is considered dead. The time is shorter than that of
`tidelog start`, because some tests pause brokers."""
POLL_S = 0.05


class Cluster(OwnedByProcess):
    """Brokers on free ports of the loopback interface. They are ready when the block begins and stopped when it
    ends.

    The brokers have the numbers 1 to `brokers`. Each is a child process, so a test can kill, pause, stop and start
    it. A broker that is started again has the same data and the same port. `settings` has Kafka's names and is used
    by all brokers. By default, topics have three replicas (fewer if there are fewer brokers), and
    `min.insync.replicas` is 2 (1 if there are fewer than three brokers). `racks` contains the `broker.rack` of each
    broker, so that a test can read from a follower (`client.rack`).

    Without `data`, all data is in a temporary directory. It is deleted at the end, even if the test fails or the
    program ends without stopping the cluster. The processes always end when this process ends, even if it is killed.

    A started cluster belongs to the process that started it. In a process that is forked from this process, `stop`
    and the end of the block do nothing, and all other methods that change a broker raise RuntimeError.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        data: str | Path | None = None,
        settings: Mapping[str, object] = {},
        racks: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        if racks and len(racks) != brokers:
            raise ValueError(f"{brokers} brokers need {brokers} racks, not {len(racks)}")
        for name in ("node.id", "broker.id", "metadata.store"):
            if name in settings:
                raise ValueError(f"{name} is set by the cluster")
        super().__init__(data)
        self._count = brokers
        self._settings = dict(settings)
        self._racks = list(racks)
        self._host = host
        self._brokers: dict[int, Broker] = {}
        self._paused: dict[int, None] = {}

    # The information for clients

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for a client's `bootstrap.servers`. Raises RuntimeError before the start."""
        return ",".join(self.address(number) for number in self.numbers)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all brokers, including brokers that do not run."""
        return list(range(1, self._count + 1))

    def address(self, number: int) -> str:
        """Return HOST:PORT of one broker."""
        return self._broker(number).bootstrap

    def pid(self, number: int) -> int:
        """Return the id of the broker's process. Raises RuntimeError if the broker does not run."""
        return self._broker(number).pid

    def log(self, number: int) -> str:
        """Return the log of the broker's process since its last start. Raises RuntimeError if the broker does not
        run.
        """
        return self._broker(number).log()

    @property
    def running(self) -> list[int]:
        """The numbers of the brokers that were started, and neither stopped nor killed. Some of them may be paused."""
        return [number for number, broker in self._brokers.items() if broker.is_started]

    # Changing one broker

    def kill(self, number: int) -> None:
        """End the broker's process as kill -9 does. The other brokers elect new leaders immediately, because this
        method also ends the broker's lease.

        (`tidelog start --brokers` watches its brokers' processes, and also ends the lease of a dead broker. If nothing
        watches a process, the other brokers wait for `broker.session.timeout.ms`. `pause` causes the same wait.)
        """
        self._check_owner()
        self._broker(number).kill()
        self._paused.pop(number, None)
        self._end_leases(number)

    def restart(self, number: int) -> None:
        """Stop the broker cleanly, if it runs, and start it again."""
        if number in self.running:
            self.stop(number)
        self.start(number)

    def pause(self, number: int) -> None:
        """Pause the broker's process (SIGSTOP), like a machine that stops for a long time.

        The other brokers notice it after `broker.session.timeout.ms`, which is 4 s unless `settings` contains it.
        """
        self._check_owner()
        os.kill(self.pid(number), signal.SIGSTOP)
        self._paused[number] = None

    def resume(self, number: int) -> None:
        """Continue a paused broker. Does nothing if the broker is not paused."""
        self._check_owner()
        if number in self._paused:
            del self._paused[number]
            os.kill(self.pid(number), signal.SIGCONT)

    def wait_until_in_sync(self, timeout_s: float = 30.0) -> None:
        """Wait until every broker is registered, and every partition has a leader and all its replicas in sync.

        Every broker is asked, so a client may afterwards use any of them. Raises TimeoutError. Its message describes
        one of the remaining problems.
        """
        from tidelog.client.blocking import Client
        from tidelog.client.errors import ClientError

        deadline = time.monotonic() + timeout_s
        for number in self.numbers:
            with Client(self.address(number)) as client:
                while True:
                    try:
                        problem = _problem(client, self._count)
                    except ClientError as error:
                        problem = str(error)
                    if not problem:
                        break
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"the cluster is not in sync after {timeout_s:g} s: {problem}")
                    time.sleep(POLL_S)

    # The whole cluster, or one broker

    def start(self, number: int | None = None) -> None:
        """Start all brokers, and return when they accept connections. With `number`, start one broker that was
        stopped or killed.

        A broker that is started again has the same data and port. Raises BrokerFailedError with the message of a
        broker that did not start. Raises RuntimeError if the cluster or the broker is already running, or belongs to
        another process.
        """
        self._check_owner()
        if number is not None:
            self._broker(number).start()
            return
        if self._owner_pid is not None:
            raise RuntimeError("the cluster runs already")
        self._owner_pid = os.getpid()
        if self.data is None:
            self.data = Path(tempfile.mkdtemp(prefix="tidelog-cluster-"))
            self._clean_up_at_exit(self._at_exit)
        self.data.mkdir(parents=True, exist_ok=True)
        for number in self.numbers:
            if number not in self._brokers:
                self._brokers[number] = self._new_broker(number, self.data)
        try:
            _run_all([broker.start for broker in self._brokers.values()])
        except BaseException as error:
            try:
                self.stop()
            except BrokerFailedError as failure:  # `error` is the cause, so it is the one to raise
                error.add_note(f"another broker did not stop cleanly: {failure}")
            raise

    def stop(self, number: int | None = None) -> None:
        """Stop all brokers cleanly, one after another, and delete the data if its directory is temporary. With
        `number`, stop only this broker, which hands over its leaderships.

        Does nothing in a process that was forked from the owner. Raises BrokerFailedError if a broker had already
        ended by itself, or did not stop cleanly. Without `number`, all brokers are stopped before the first error
        is raised.
        """
        if self._belongs_to_another_process or self._owner_pid is None:
            return
        if number is not None:
            self.resume(number)
            self._broker(number).stop()
            return
        failures: list[BrokerFailedError] = []
        try:
            for other in reversed(self.running):
                try:
                    self.stop(other)
                except BrokerFailedError as failure:
                    failures.append(failure)
        finally:
            self._forget()
        if failures:
            raise failures[0]

    def _new_broker(self, number: int, data: Path) -> Broker:
        defaults: dict[str, object] = {
            "default.replication.factor": min(self._count, REPLICAS_MAX),
            "offsets.topic.replication.factor": min(self._count, REPLICAS_MAX),
            "min.insync.replicas": 2 if self._count > 2 else 1,
            "broker.session.timeout.ms": SESSION_MS,
        }
        own: dict[str, object] = {"node.id": number, "metadata.store": f"sqlite:{data / STORE_FILE}"}
        if self._racks:
            own["broker.rack"] = self._racks[number - 1]
        settings = defaults | self._settings | own
        return Broker(process=True, data=data / f"broker-{number}", settings=settings, host=self._host)

    def _end_leases(self, number: int) -> None:
        """End the leases of a broker whose process is dead."""
        from tidelog.broker.dead_leases import BrokerLeases
        from tidelog.config.metadata_store import StoreAddress
        from tidelog.runtime.real import real_runtime

        data = self.data
        assert data is not None

        async def end() -> None:
            runtime = real_runtime()
            try:
                store = StoreAddress("sqlite", (), str(data / STORE_FILE))
                await BrokerLeases(store, runtime).end(number, [str(data / f"broker-{number}")])
            finally:
                await runtime.close()

        def run() -> None:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(end())

        _run_all([run])  # in another thread, because this thread may be running an event loop

    def _forget(self) -> None:
        """Mark the cluster as not started. If the data directory is temporary, also delete it and forget the ports."""
        self._paused.clear()
        if self._remove_temporary():
            self._brokers.clear()
        self._owner_pid = None

    def _at_exit(self) -> None:
        if not self._belongs_to_another_process:
            for number in self.running:
                self._broker(number).kill()
            self._forget()

    def _broker(self, number: int) -> Broker:
        if number not in self.numbers:
            raise ValueError(f"there is no broker {number}; the brokers are {', '.join(map(str, self.numbers))}")
        if number not in self._brokers:
            raise RuntimeError("the cluster has not started")
        return self._brokers[number]

    def _check_owner(self) -> None:
        """Raise RuntimeError if the cluster belongs to another process."""
        if self._belongs_to_another_process:
            raise RuntimeError(
                f"this cluster belongs to process {self._owner_pid}, which started it; this is process {os.getpid()}. "
                f"Connect to the cluster as a client, at {self.bootstrap}, or start another Cluster in this process"
            )

    def __getstate__(self) -> dict[str, object]:
        """Return the state for pickle and copy. Raises TypeError if the cluster is started: it cannot be copied."""
        if self._owner_pid is not None:
            raise TypeError(
                f"this cluster belongs to process {self._owner_pid} and cannot be copied: pass its bootstrap instead"
            )
        return self.__dict__

    def __repr__(self) -> str:
        if self._owner_pid is None:
            return f"<Cluster of {self._count} brokers, not started>"
        return f"<Cluster {self.bootstrap} of process {self._owner_pid}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await run_in_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # In a forked process the event loop is a copy of the owner's loop, and none of its methods may be called.
        if not self._belongs_to_another_process:
            await run_in_thread(self.stop)


def _run_all(functions: "list[Callable[[], None]]") -> None:
    """Run each function in a thread of its own, and return when all have ended. Raises the first error."""
    errors: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def _problem(client: "Client", brokers: int) -> str:
    """Return a text about one problem: missing brokers, a partition without a leader, or a replica that is not in sync.
    The text is empty if there is none. Raises ClientError.
    """
    from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

    answer = client.ask_any(MetadataRequest(topics=None), client.deadline())
    assert isinstance(answer, MetadataResponse)
    if len(answer.brokers) < brokers:
        return f"only {len(answer.brokers)} of {brokers} brokers are active"
    for topic in answer.topics:
        for part in topic.partitions:
            if part.leader_id < 0:
                return f"{topic.name}-{part.partition_index} has no leader"
            if missing := set(part.replica_nodes) - set(part.isr_nodes):
                return f"replica {min(missing)} of {topic.name}-{part.partition_index} is not in sync"
    return ""
