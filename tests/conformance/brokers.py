"""Starting a broker for a comparison, and the settings that the recorded one had."""

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

# Given to Kafka when it was recorded, and to whatever is compared. The rest is at its defaults.
SETTINGS: Mapping[str, str] = {
    "node.id": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "400",
    "group.max.size": "3",
    "log.retention.hours": "876000",  # recorded batches have a fixed date, and are not to be deleted for their age
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
# Kafka always decodes what it appends; Tidelog does when it is told to.
TIDELOG_SETTINGS: Mapping[str, str] = {**SETTINGS, "record.validation": "full"}
READY_TIMEOUT_S = 60.0
ADDRESS = re.compile(r"([\w.\-]+):(\d+)")


class NotReady(RuntimeError):
    """The broker ended, or said nothing in time."""


@contextlib.contextmanager
def tidelog(settings: Mapping[str, str] = TIDELOG_SETTINGS) -> Iterator[tuple[str, int]]:
    """A Tidelog broker of this environment, with the settings, in a directory of its own; yields (host, port)."""
    with tempfile.TemporaryDirectory(prefix="conform-") as directory:
        program = Path(sys.executable).with_name("tidelog")
        settings = {**settings, "log.dirs": two_directories(directory)}
        command = [str(program), "start", "--listen", "127.0.0.1:0", *settings_flags(settings)]
        with running(command) as address:
            yield address


@contextlib.contextmanager
def from_template(template: str, port: int) -> Iterator[tuple[str, int]]:
    """The broker of a command with {port}, {next_port} and {settings} in it; yields (host, port)."""
    with tempfile.TemporaryDirectory(prefix="conform-") as directory:
        settings = shlex.join(settings_flags({**SETTINGS, "log.dirs": two_directories(directory)}))
        text = template.format(port=port, next_port=port + 1, settings=settings)
        with running(shlex.split(text)) as address:
            yield address


def two_directories(parent: str) -> str:
    return f"{parent}/a,{parent}/b"


def settings_flags(settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[tuple[str, int]]:
    """Runs `command` until the block ends; the first host:port on its stdout is where it listens."""
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
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                break
            line = process.stdout.readline()
            if not line:
                raise NotReady(f"the broker ended with {process.wait()} before it was ready")
            match = ADDRESS.search(line)
            if match:
                return match[1], int(match[2])
    raise NotReady(f"the broker did not say in {READY_TIMEOUT_S:.0f} s where it listens")
