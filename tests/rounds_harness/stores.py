"""The metadata store of a cluster: a file of SQLite, or three servers of etcd or ZooKeeper that can be killed."""

import importlib.machinery
import importlib.util
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from types import ModuleType

from rounds_harness.namespaces import Network

SERVERS = 3
PORTS = {"etcd": 2379, "zookeeper": 2181}
READY_S = 60
TICK_MS = 500
"""With shorter ticks, the servers of a busy machine lose each other."""
KINDS = ("sqlite", "etcd", "zookeeper")


def servers_script() -> ModuleType:
    """Return `script/stores` as a module."""
    path = Path(__file__).resolve().parents[2] / "script/stores"
    loader = importlib.machinery.SourceFileLoader("store_servers", str(path))
    spec = importlib.util.spec_from_loader("store_servers", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class SqliteFile:
    """The file that the brokers of one machine share."""

    machines: tuple[str, ...] = ()

    def __init__(self, directory: Path) -> None:
        self._path = directory / "cluster.sqlite"
        self.address = f"sqlite:{self._path}"
        self._blocker: sqlite3.Connection | None = None

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.heal()

    def lock(self) -> None:
        """Hold the file's write lock: no broker can change the metadata or renew its lease."""
        blocker = sqlite3.connect(self._path, isolation_level=None, timeout=5)
        blocker.execute("BEGIN IMMEDIATE")
        self._blocker = blocker

    def heal(self) -> None:
        if self._blocker is not None:
            self._blocker.close()
            self._blocker = None


class Servers:
    """Three servers of etcd or ZooKeeper. A server that is started again has the same data and address."""

    machines = tuple(f"store-{number}" for number in range(1, SERVERS + 1))

    def __init__(self, kind: str, directory: Path, network: Network | None) -> None:
        self._kind = kind
        self._script = servers_script()
        root = self._script.install()
        data = (directory / "store").absolute()
        data.mkdir()
        if network is None:
            self._hosts, ports = ["127.0.0.1"] * SERVERS, self._script.free_ports(SERVERS)
        else:
            self._hosts, ports = [network.addresses[machine] for machine in self.machines], [PORTS[kind]] * SERVERS
        self._ports: list[int] = ports
        make = self._script.etcd_commands if kind == "etcd" else self._script.zookeeper_commands
        commands = make(root, data, ports, TICK_MS, self._hosts)
        before = [network.before(machine) if network else [] for machine in self.machines]
        self._commands = [[*start, *command] for start, command in zip(before, commands, strict=True)]
        self._logs = [directory / f"store-{number + 1}.log" for number in range(SERVERS)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * SERVERS
        self._paused: set[int] = set()
        pairs = ",".join(f"{host}:{port}" for host, port in zip(self._hosts, ports, strict=True))
        self.address = f"{kind}://{pairs}/rounds"

    def start(self) -> None:
        """Start the servers that do not run, and wait until all of them answer. Raises TimeoutError."""
        for number, process in enumerate(self._processes):
            if process is None:
                with open(self._logs[number], "ab") as log:
                    self._processes[number] = subprocess.Popen(
                        self._commands[number], stdout=log, stderr=log, start_new_session=True
                    )
        latest_s = time.monotonic() + READY_S
        while not all(
            self._script.answers(self._kind, port, host) for host, port in zip(self._hosts, self._ports, strict=True)
        ):
            if time.monotonic() > latest_s:
                raise TimeoutError(f"the servers of {self._kind} do not answer: see {self._logs[0].parent}/store-*.log")
            time.sleep(0.05)

    def kill(self, number: int) -> None:
        process = self._processes[number]
        if process is not None:
            process.kill()
            process.wait()
            self._processes[number] = None
            self._paused.discard(number)

    def pause(self, number: int) -> None:
        process = self._processes[number]
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        self._paused.add(number)

    def heal(self) -> None:
        """Resume and start all servers. Raises TimeoutError if they do not answer."""
        for number in self._paused:
            process = self._processes[number]
            assert process is not None
            os.kill(process.pid, signal.SIGCONT)
        self._paused.clear()
        self.start()

    def stop(self) -> None:
        for number in range(SERVERS):
            self.kill(number)


Store = SqliteFile | Servers
