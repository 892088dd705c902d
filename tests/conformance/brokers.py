"""Start a broker for a comparison, with the settings that the recorded Kafka had."""

import contextlib
import re
import selectors
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

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
# Kafka always decodes the records that it appends. Tidelog does so only with this setting.
TIDELOG_SETTINGS: Mapping[str, str] = {**SETTINGS, "record.validation": "full"}
READY_TIMEOUT_S = 60.0
ADDRESS = re.compile(r"([\w.\-]+):(\d+)")


class NotReady(RuntimeError):
    """The broker ended before it was ready, or did not print its address in time."""


@contextlib.contextmanager
def tidelog(settings: Mapping[str, str] = TIDELOG_SETTINGS) -> Iterator[tuple[str, int]]:
    """Run a Tidelog broker of this Python environment in a new directory. Yield (host, port)."""
    with tempfile.TemporaryDirectory(prefix="conform-") as directory:
        program = Path(sys.executable).with_name("tidelog")
        settings = {**settings, "log.dirs": two_directories(directory)}
        command = [str(program), "start", "--listen", "127.0.0.1:0", *settings_flags(settings)]
        with run_broker(command) as address:
            yield address


@contextlib.contextmanager
def from_template(template: str, port: int) -> Iterator[tuple[str, int]]:
    """Run a broker with a command that contains {port}, {next_port} and {settings}. Yield (host, port)."""
    with tempfile.TemporaryDirectory(prefix="conform-") as directory:
        settings = shlex.join(settings_flags({**SETTINGS, "log.dirs": two_directories(directory)}))
        text = template.format(port=port, next_port=port + 1, settings=settings)
        with run_broker(shlex.split(text)) as address:
            yield address


def two_directories(parent: str) -> str:
    return f"{parent}/a,{parent}/b"


def settings_flags(settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@contextlib.contextmanager
def run_broker(command: list[str]) -> Iterator[tuple[str, int]]:
    """Run `command` until the block ends. Yield the first host and port that it prints on stdout."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _address(process)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _address(process: "subprocess.Popen[str]") -> tuple[str, int]:
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
            match = ADDRESS.search(line)
            if match:
                return match[1], int(match[2])
    raise NotReady(f"the broker did not print its address within {READY_TIMEOUT_S:.0f} s")
