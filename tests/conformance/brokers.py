"""Start a broker or a cluster for a comparison, with the settings that the recorded Kafka had."""

import contextlib
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

# The settings of Kafka when it was recorded, and of a broker that is compared. All other settings have their defaults.
SETTINGS: Mapping[str, str] = {
    "node.id": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "400",
    "group.max.size": "3",
    "log.retention.hours": "876000",  # recorded batches have an old, fixed date, and must not be deleted
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
# Settings that only the conversations with the line `setup NAME` need, in addition to SETTINGS.
SETUPS: Mapping[str, Mapping[str, str]] = {
    "expiry": {
        "transactional.id.expiration.ms": "4000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    },
    "transactions": {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"},
}
# Kafka always decodes the records that it appends. Tidelog does so only with this setting.
TIDELOG_SETTINGS: Mapping[str, str] = {**SETTINGS, "record.validation": "full"}
# The same for clusters. Each broker has an id of its own.
CLUSTER_SETTINGS: Mapping[str, str] = {
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.hours": "876000",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "replica.lag.time.max.ms": "10000",
}
NODES = 3
READY_TIMEOUT_S = 300.0
ADDRESS = re.compile(r"([\w.\-]+):(\d+)")
PIDS = re.compile(r"pids ([\d ]+)")


class Cluster(NamedTuple):
    """The brokers that conversations are held with."""

    addresses: tuple[tuple[str, int], ...]
    pids: tuple[int, ...] = ()
    """The process of each broker; empty if they are unknown."""

    def kill(self, node: int) -> None:
        """Kill a broker. Its id is its position in the cluster, counted from 1."""
        if not self.pids:
            raise NotReady(f"broker {node} cannot be killed: its process is unknown")
        os.kill(self.pids[node - 1], signal.SIGKILL)


class NotReady(RuntimeError):
    """The broker ended before it was ready, or did not print its address in time."""


@contextlib.contextmanager
def tidelog(settings: Mapping[str, str] = TIDELOG_SETTINGS, *, setup: str = "") -> Iterator[tuple[str, int]]:
    """Run a Tidelog broker of this Python environment in a new directory. Yield (host, port).

    The settings of `setup`, a key of SETUPS, are added to `settings`.
    """
    with tempfile.TemporaryDirectory(prefix="conform-") as directory:
        program = Path(sys.executable).with_name("tidelog")
        settings = {**settings, **(SETUPS[setup] if setup else {}), "log.dirs": two_directories(directory)}
        command = [str(program), "start", "--listen", "127.0.0.1:0", *settings_flags(settings)]
        with run_broker(command) as address:
            yield address


@contextlib.contextmanager
def tidelog_cluster() -> Iterator[Cluster]:
    """Run three Tidelog brokers on one metadata store, in new directories."""
    program = Path(sys.executable).with_name("tidelog")
    with tempfile.TemporaryDirectory(prefix="conform-") as directory, contextlib.ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []
        for node in range(1, NODES + 1):
            settings = {
                **CLUSTER_SETTINGS,
                "record.validation": "full",
                "node.id": str(node),
                "log.dirs": f"{directory}/{node}",
                "metadata.store": f"sqlite:{directory}/metadata",
            }
            command = [str(program), "start", "--listen", "127.0.0.1:0", *settings_flags(settings)]
            processes.append(stack.enter_context(run_process(command)))
        addresses = [_addresses(_line_with_address(process))[0] for process in processes]
        yield Cluster(tuple(addresses), tuple(process.pid for process in processes))


@contextlib.contextmanager
def from_template(template: str, port: int, *, is_cluster: bool = False, setup: str = "") -> Iterator[Cluster]:
    """Run brokers with a command that contains {port}, {next_port} and {settings}. It must print their addresses, and
    the ids of their processes if conversations kill brokers.
    """
    with tempfile.TemporaryDirectory(prefix="conform-") as directory:
        settings = {**SETTINGS, **(SETUPS[setup] if setup else {}), "log.dirs": two_directories(directory)}
        flags = shlex.join(settings_flags(CLUSTER_SETTINGS if is_cluster else settings))
        text = template.format(port=port, next_port=port + 1, settings=flags)
        with run_command(shlex.split(text)) as line:
            pids = PIDS.search(line)
            yield Cluster(_addresses(line), tuple(map(int, pids[1].split())) if pids else ())


def two_directories(parent: str) -> str:
    return f"{parent}/a,{parent}/b"


def settings_flags(settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@contextlib.contextmanager
def run_broker(command: list[str]) -> Iterator[tuple[str, int]]:
    """Run `command` until the block ends. Yield the first host and port that it prints on stdout."""
    with run_command(command) as line:
        yield _addresses(line)[0]


@contextlib.contextmanager
def run_command(command: list[str]) -> Iterator[str]:
    """Run `command` until the block ends. Yield the first line with an address that it prints on stdout."""
    with run_process(command) as process:
        yield _line_with_address(process)


@contextlib.contextmanager
def run_process(command: list[str]) -> "Iterator[subprocess.Popen[str]]":
    """Run `command` until the block ends."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _addresses(line: str) -> tuple[tuple[str, int], ...]:
    return tuple((host, int(port)) for host, port in ADDRESS.findall(line))


def _line_with_address(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + READY_TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (remaining_s := deadline - time.monotonic()) > 0:
            if not selector.select(remaining_s):
                break
            line = process.stdout.readline()
            if not line:
                raise NotReady(f"the broker ended with {process.wait()} before it was ready")
            if ADDRESS.search(line):
                return line
    raise NotReady(f"the broker did not print its address within {READY_TIMEOUT_S:.0f} s")
