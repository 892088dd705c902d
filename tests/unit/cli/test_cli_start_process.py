"""`tidelog start` as a process: its one line of output, its signals, its errors."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

READY = re.compile(r"Tidelog \S+ listening on 127\.0\.0\.1:(\d+) \(data (.+), cluster ID [\w-]{22}\)\n")

Start: TypeAlias = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(*flags)` runs `tidelog start`; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tidelog", "start", *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def port_of(broker: subprocess.Popen[str], data: Path) -> int:
    """The port in the ready line, which has to name this directory."""
    assert broker.stdout is not None
    line = broker.stdout.readline()
    found = READY.fullmatch(line)
    assert found is not None, line
    assert found[2] == str(data)
    return int(found[1])


def refusal(broker: subprocess.Popen[str]) -> str:
    """The one line of a broker that did not start."""
    output, errors = broker.communicate(timeout=30)
    assert broker.returncode == 1
    assert output == ""
    assert errors.startswith("Error: ")
    assert errors.count("\n") == 1
    return errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_once_it_accepts_and_a_signal_stops_it(start: Start, tmp_path: Path, number: int) -> None:
    broker = start("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    socket.create_connection(("127.0.0.1", port_of(broker, tmp_path / "data")), timeout=5).close()
    broker.send_signal(number)
    output, _ = broker.communicate(timeout=30)
    assert broker.returncode == 0
    assert output == ""


def test_every_line_of_the_log_is_structured(start: Start, tmp_path: Path) -> None:
    broker = start("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), "--log-level", "debug")
    port_of(broker, tmp_path / "data")
    broker.terminate()
    _, log = broker.communicate(timeout=30)
    assert "tidelog.cli stop=requested signal=SIGTERM" in log
    for line in log.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) +[\w.]+ \S", line), line


def test_settings_come_from_file_environment_and_flags(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.properties"
    file.write_text(f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'data'}\nnum.partitions=0\n")
    assert "num.partitions" in refusal(start("--config", str(file)))
    broker = start("--config", str(file), "--set", "num.partitions=3")
    port_of(broker, tmp_path / "data")


def test_what_a_file_of_kafkas_has_besides_is_told(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\ncontroller.listener.names=CONTROLLER\nzookeeper.connect=localhost:2181\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:1\n"
    )
    broker = start("--config", str(file), "--data", str(tmp_path / "data"))
    port_of(broker, tmp_path / "data")
    broker.terminate()
    _, log = broker.communicate(timeout=30)
    assert "controller listener not opened listener=CONTROLLER://127.0.0.1:1\n" in log
    assert (
        f"unknown setting ignored name=zookeeper.connect place={file}:3 reason=Kafka 4 no longer uses ZooKeeper\n"
        in log
    )


def test_a_busy_port(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        line = refusal(start("--listen", address, "--data", str(tmp_path / "data")))
    assert line.startswith(f"Error: {address} is in use: ")


@pytest.mark.parametrize("there", ["", "new", "new/deeper", "new/deeper/data"])
def test_a_busy_port_leaves_nothing_of_a_new_data_directory(start: Start, tmp_path: Path, there: str) -> None:
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    data = tmp_path / "new/deeper/data"
    with socket.create_server(("127.0.0.1", 0)) as other:
        refusal(start("--listen", f"127.0.0.1:{other.getsockname()[1]}", "--data", f"{data},{tmp_path / 'new/second'}"))
    assert sorted(tmp_path.rglob("*")) == before
    port_of(start("--listen", "127.0.0.1:0", "--data", str(data)), data)


def test_a_busy_port_leaves_a_used_data_directory_as_it_was(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = start("--listen", "127.0.0.1:0", "--data", str(data))
    port_of(broker, data)
    broker.kill()
    broker.wait()
    before = sorted(data.rglob("*"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        refusal(start("--listen", f"127.0.0.1:{other.getsockname()[1]}", "--data", f"{data},{tmp_path / 'second'}"))
    assert sorted(data.rglob("*")) == before
    assert not (tmp_path / "second").exists()


def test_a_second_broker_on_the_same_directory(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    port_of(start("--listen", "127.0.0.1:0", "--data", str(data)), data)
    assert f"another broker runs in {data}" in refusal(start("--listen", "127.0.0.1:0", "--data", str(data)))


def test_an_unknown_setting_names_the_nearest(start: Start) -> None:
    assert "did you mean num.partitions?" in refusal(start("--set", "num.partition=3"))


def test_a_wildcard_address_says_what_to_set(start: Start) -> None:
    assert "set advertised.listeners=" in refusal(start("--listen", "0.0.0.0:0"))


def test_a_directory_that_is_none(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in refusal(start("--listen", "127.0.0.1:0", "--data", str(tmp_path / "file")))


def can_mount() -> bool:
    probe = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="full and read-only disks take a mount in a namespace of their own")
@pytest.mark.parametrize(("options", "reason"), [("size=64k", "full|no space"), ("ro", "cannot be written")])
def test_a_disk_that_takes_nothing(tmp_path: Path, options: str, reason: str) -> None:
    start = f"exec {sys.executable} -m tidelog start --listen 127.0.0.1:0 --data {tmp_path}/data"
    script = f"mount -t tmpfs -o {options} tmpfs {tmp_path} && {start}"
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    ran = subprocess.run(namespace, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert re.fullmatch(rf"Error: .*({reason}).*\n", ran.stderr)


def test_a_second_signal_ends_it_at_once(start: Start, tmp_path: Path) -> None:
    """A client that never reads its answers holds up an orderly stop; whoever cannot wait asks twice."""
    data = tmp_path / "data"
    broker = start("--listen", "127.0.0.1:0", "--data", str(data), "--log-level", "info")
    port_of(broker, data)
    assert broker.stderr is not None
    # Stopped, it takes no signal; both are pending when it goes on, and are seen one after the other.
    broker.send_signal(signal.SIGSTOP)
    broker.send_signal(signal.SIGINT)
    broker.send_signal(signal.SIGTERM)
    broker.send_signal(signal.SIGCONT)
    broker.communicate(timeout=30)
    assert broker.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    again = start("--listen", "127.0.0.1:0", "--data", str(data))
    port_of(again, data)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
@pytest.mark.parametrize(
    ("output", "reason"), [("/dev/full", "No space left on device"), ("closed pipe", "Broken pipe")]
)
def test_a_ready_line_that_cannot_be_written_stops_it_in_order(
    start: Start, tmp_path: Path, output: str, reason: str
) -> None:
    if output == "closed pipe":
        reading, descriptor = os.pipe()
        os.close(reading)
    else:
        descriptor = os.open(output, os.O_WRONLY)
    command = [sys.executable, "-m", "tidelog", "start", "--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    with open(descriptor, "wb") as stdout:
        ran = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=30)
    assert ran.returncode == 1
    line = f"Error: the line with the broker's address cannot be written to stdout: {reason}"
    assert ran.stderr.splitlines()[-1] == line
    again = start("--listen", "127.0.0.1:0", "--data", str(tmp_path))
    port_of(again, tmp_path)
    again.terminate()
    assert " directory=clean " in again.communicate(timeout=30)[1]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="what a process has open is told by Linux")
def test_streams_that_were_never_open_are_no_files_of_the_log(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidelog", "start", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    with subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]) as broker:
        try:
            deadline = time.monotonic() + 30
            # It is a file that it makes once it has started.
            while not (tmp_path / "data" / "metadata.sqlite").exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            streams = {Path(f"/proc/{broker.pid}/fd/{descriptor}").readlink() for descriptor in range(3)}
            assert streams == {Path(os.devnull)}
            broker.terminate()
            assert broker.wait(30) == 0
        finally:
            broker.kill()


def test_the_log_says_how_the_directory_was_found(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"

    def found(number: signal.Signals) -> str:
        broker = start("--listen", "127.0.0.1:0", "--data", str(data))
        port_of(broker, data)
        broker.send_signal(number)
        _, log = broker.communicate(timeout=30)
        (line,) = [line for line in log.splitlines() if " started " in line]
        return line.partition(" directory=")[2].partition(" ")[0]

    signals = (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)
    assert [found(number) for number in signals] == ["new", "clean", "unclean"]
