"""The broker processes of a cluster: started as `tidelog start`, killed, paused, and asked for their state."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from rounds_harness import disks
from rounds_harness.namespaces import CLIENTS, Network
from rounds_harness.stores import KINDS, Servers, SqliteFile, Store
from tidelog.testing.child import child_environment

NUMBERS = (1, 2, 3)
START_S = 90.0
STOP_S = 60.0
SESSION_MS = 6000
"""Shorter than the default of 9 s, so that rounds are short; long enough for a machine that is busy."""
TOPIC = "orders"
PARTITIONS = 6
SETTINGS: dict[str, object] = {
    "default.replication.factor": 3,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "min.insync.replicas": 2,
    "broker.session.timeout.ms": SESSION_MS,
    "replica.lag.time.max.ms": 4000,
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.session.timeout.ms": 8000,
    "group.consumer.min.session.timeout.ms": 8000,
    "group.consumer.heartbeat.interval.ms": 1000,
    "group.consumer.min.heartbeat.interval.ms": 1000,
    "log.segment.bytes": 1 << 20,
    "auto.create.topics.enable": "false",
}
CONTROLLER = re.compile(r"^(\S+) INFO +\S+ controller node=(\d+)", re.MULTILINE)
POLL_S = 0.1


def machine_of(number: int) -> str:
    return f"broker-{number}"


class BrokerProcess:
    """One broker. It is started again with the same data and address."""

    def __init__(self, number: int, address: str, before: list[str], data: Path, log: Path, store: str) -> None:
        self.number = number
        self.address = address
        self.data = data
        self.log_path = log
        self.starts = 0
        """The number of starts, also of those that failed."""
        settings = SETTINGS | {"node.id": number, "metadata.store": store}
        pairs = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
        arguments = ["--listen", address, "--data", str(data), *pairs]
        self._command = [*before, sys.executable, "-P", "-m", "tidelog", "start", *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self.is_paused = False
        self._gives_up = False

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended_by_itself(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        """Start the process, again if it ends, and return when it accepts connections. Raises TimeoutError."""
        latest_s = time.monotonic() + START_S
        self._gives_up = False
        while not self._start_once(latest_s):
            if self._gives_up:
                return
            if time.monotonic() > latest_s:
                raise TimeoutError(f"broker {self.number} was not ready after {START_S:g} s: see {self.log_path}")
            time.sleep(0.5)

    def _start_once(self, latest_s: float) -> bool:
        """Return whether the broker has become ready; if not, its process has ended."""
        self.starts += 1
        # The broker ends when this process does, since nothing else holds the writing end of the pipe.
        reading_end, self._pipe = os.pipe()
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--parent-pipe", str(reading_end)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[reading_end],
                env=child_environment(os.environ),
                process_group=0,
            )
        os.close(reading_end)
        process, lines = self._process, list[bytes]()
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: lines.append(process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        reader.join(max(latest_s - time.monotonic(), 0))
        if lines and b" listening on " in lines[0]:
            return True
        self.kill()
        return False

    def give_up_start(self) -> None:
        """End the process while another thread starts it, whose `start` then returns. The broker may be ready."""
        self._gives_up = True
        self.signal(signal.SIGKILL)

    def kill(self) -> None:
        """End the process as kill -9 does."""
        self.signal(signal.SIGKILL)
        self._release()

    def stop(self) -> int:
        """Stop the broker in order. Return its exit code."""
        self.resume()
        self.signal(signal.SIGTERM)
        assert self._process is not None
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            self.kill()

    def _release(self) -> None:
        if self._process is not None:
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            os.close(self._pipe)
            self._process = None
        self.is_paused = False

    def pause(self) -> None:
        self.is_paused = True
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        if self.is_running:
            assert self._process is not None
            os.kill(self._process.pid, number)


class Brokers:
    """Three brokers on one metadata store, with everything that faults can be done to."""

    def __init__(self, kind: str, directory: Path, network: Network | None) -> None:
        """Prepare the cluster below `directory`. Without a network, all processes are on the loopback interface, and
        their disks are not limited.
        """
        assert kind in KINDS
        directory.mkdir(parents=True)
        self.directory = directory
        self.network = network
        self.store: Store = SqliteFile(directory) if kind == "sqlite" else Servers(kind, directory, self.network)
        self.disk_kind = ""
        self._brokers: dict[int, BrokerProcess] = {}
        ports = [9092] * len(NUMBERS) if network else free_ports(len(NUMBERS))
        for number, port in zip(NUMBERS, ports, strict=True):
            machine = machine_of(number)
            if network:
                self.disk_kind = disks.mount(directory / machine, directory / f"{machine}.image")
            host = network.addresses[machine] if network else "127.0.0.1"
            before = network.before(machine) if network else []
            data, log = directory / machine / "data", directory / f"{machine}.log"
            address = f"{host}:{port}"
            self._brokers[number] = BrokerProcess(number, address, before, data, log, self.store.address)
        self.bootstrap = ",".join(broker.address for broker in self._brokers.values())
        self._admin: AdminClient | None = None

    def __getitem__(self, number: int) -> BrokerProcess:
        return self._brokers[number]

    def start(self) -> None:
        self.store.start()
        self.start_brokers()

    def start_brokers(self) -> None:
        """Start all brokers that do not run. Raises TimeoutError."""
        stopped = [broker for broker in self._brokers.values() if not broker.is_running]
        with ThreadPoolExecutor(len(self._brokers)) as threads:
            list(threads.map(BrokerProcess.start, stopped))

    def stop(self) -> list[str]:
        """Stop all brokers cleanly, then the store. Return what did not stop cleanly."""
        codes = {number: broker.stop() for number, broker in self._brokers.items() if broker.is_running}
        self.store.stop()
        return [f"broker {number} ended with exit code {code}" for number, code in codes.items() if code]

    def destroy(self) -> None:
        """End all processes, without any order."""
        for broker in self._brokers.values():
            broker.kill()
        self.store.stop()

    def keep_data(self) -> None:
        """Copy the brokers' data out of their disks, which exist only as long as this program."""
        if self.disk_kind:
            for number in NUMBERS:
                source = self.directory / machine_of(number) / "data"
                shutil.copytree(source, self.directory / f"data-{number}", dirs_exist_ok=True)

    def remove(self) -> None:
        for number in NUMBERS:
            disks.unmount(self.directory / machine_of(number))
        shutil.rmtree(self.directory, ignore_errors=True)

    # Their state

    def client_settings(self, **settings: object) -> dict[str, object]:
        return {"bootstrap.servers": self.bootstrap} | settings

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            settings: Mapping[str, object] = self.client_settings(**{"reconnect.backoff.max.ms": 1000})
            self._admin = AdminClient(dict(settings), logger=quiet_logger())  # type: ignore[call-arg]
        return self._admin

    def leaders(self) -> dict[int, int]:
        """Return the leader of each partition of the topic. Raises KafkaException."""
        found = self.admin.list_topics(TOPIC, timeout=10).topics[TOPIC]
        return {index: partition.leader for index, partition in found.partitions.items()}

    def elect_preferred_leaders(self) -> None:
        """Let each broker lead the partitions whose first replica it is. Raises KafkaException."""
        self.admin.elect_leaders(ElectionType.PREFERRED, None).result(30)

    def wait_until_in_sync(self, timeout_s: float) -> None:
        """Wait until all brokers are active, and all replicas of all partitions are in sync. Raises TimeoutError."""
        latest_s = time.monotonic() + timeout_s
        while problem := self._problem():
            if time.monotonic() > latest_s:
                raise TimeoutError(f"not in sync after {timeout_s:g} s: {problem}")
            time.sleep(POLL_S)

    def _problem(self) -> str:
        try:
            metadata = self.admin.list_topics(timeout=5)
        except KafkaException as error:
            return str(error)
        if missing := set(NUMBERS) - set(metadata.brokers):
            return f"brokers {missing} are not active"
        for topic in metadata.topics.values():
            for index, found in topic.partitions.items():
                if found.leader < 0 or set(found.isrs) != set(found.replicas):
                    return f"{topic.topic}-{index}: leader {found.leader}, replicas {found.replicas}, ISR {found.isrs}"
        return ""

    def controller(self) -> int:
        """Return the broker that became the controller last, by the brokers' logs."""
        latest = max(
            (
                found.groups()
                for broker in self._brokers.values()
                for found in CONTROLLER.finditer(read(broker.log_path))
            ),
            default=("", "1"),
        )
        return int(latest[1])

    def heal(self) -> None:
        """Undo all faults, except that brokers that do not run are not started."""
        if self.network:
            self.network.heal()
        for number in NUMBERS:
            if self.disk_kind:
                disks.free(self.directory / machine_of(number))
            self._brokers[number].resume()
        self.store.heal()

    def isolate(self, number: int) -> None:
        """Cut a broker off from all other machines."""
        for other in (CLIENTS, *(machine_of(each) for each in NUMBERS if each != number), *self.store.machines):
            self.cut(machine_of(number), other)
            self.cut(other, machine_of(number))

    def cut(self, source: str, target: str) -> None:
        """Lose all packets from one machine to another one."""
        assert self.network is not None
        self.network.cut(source, target)


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def free_ports(count: int) -> list[int]:
    from rounds_harness.stores import servers_script

    ports: list[int] = servers_script().free_ports(count)
    return ports


def quiet_logger() -> object:
    """Return a logger for clients whose lines are not of interest."""
    import logging

    logger = logging.getLogger("rounds.quiet")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
