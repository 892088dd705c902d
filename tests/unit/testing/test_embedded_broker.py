"""`tidelog.testing.Broker`, in this process and as a child: ready, usable, and removed without a trace."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tidelog.broker.broker import BrokerServer
from tidelog.testing import Broker, BrokerFailedError
from tidelog.testing.broker import TEST_SETTINGS, setting_text

READY_S = 0.3
BOTH = pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])


def write(broker: Broker, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def read(broker: Broker, topic: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, 20)
        return [(message.value() or b"").decode() for message in messages]
    finally:
        consumer.close()


def accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """Threads and descriptors after the test are those before it."""
    threads, descriptors = set(threading.enumerate()), held()
    yield
    assert set(threading.enumerate()) == threads
    assert held() == descriptors


def held() -> dict[str, str]:
    """This process's descriptors and what each stands for."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except FileNotFoundError:  # the listing's own
            continue
    return found


@BOTH
def test_topics_are_made_on_demand_and_records_come_back(process: bool) -> None:
    with Broker(process=process) as broker:
        write(broker, "orders", "a", "b")
        assert read(broker, "orders", 2) == ["a", "b"]


@BOTH
def test_it_is_ready_at_once_and_gone_afterwards(process: bool) -> None:
    if not process:
        import tidelog.testing.thread  # noqa: F401 - a first import compiles
    began = time.perf_counter()
    with Broker(process=process) as broker:
        took = time.perf_counter() - began
        assert accepts(broker.bootstrap)
    assert not accepts(broker.bootstrap)
    # The bar is 0.3 s, which bench/startup.py measures; a machine under load gets more before a test fails.
    assert took < READY_S * 10


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
@BOTH
def test_it_leaves_no_thread_descriptor_or_file_behind(process: bool) -> None:
    with Broker(process=process) as broker:
        data = broker.data
        assert data is not None
        assert accepts(broker.bootstrap)
        # A client whose connection is still open when the broker stops.
        left_open = socket.create_connection(("127.0.0.1", broker.port))
    left_open.close()
    assert not data.exists()
    assert broker.data is None


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
@BOTH
def test_from_asynchronous_code(process: bool) -> None:
    async def use() -> None:
        async with Broker(process=process) as one, Broker(process=process) as other:
            assert one.bootstrap != other.bootstrap
            _, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.close()
            await writer.wait_closed()

    asyncio.run(use())


def test_the_callers_loop_runs_on_while_it_starts() -> None:
    async def use() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        async with Broker(process=True):
            counting.cancel()
        return turns

    assert asyncio.run(use()) > 100


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
@BOTH
def test_a_cancelled_start_leaves_nothing(process: bool) -> None:
    broker = Broker(process=process)

    async def use() -> None:
        async with broker:
            pytest.fail("it was cancelled before")

    async def cancelled() -> None:
        task = asyncio.create_task(use())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert broker.data is None
    with pytest.raises(RuntimeError, match="does not run"):
        broker.pid  # noqa: B018


def test_two_at_once_are_strangers() -> None:
    with Broker() as one, Broker(process=True) as other, Broker() as third:
        assert len({one.bootstrap, other.bootstrap, third.bootstrap}) == 3
        write(one, "t", "one")
        write(third, "t", "third")
        write(other, "t", "other")
        assert [read(broker, "t", 1) for broker in (one, other, third)] == [["one"], ["other"], ["third"]]


def test_nothing_global_is_touched() -> None:
    numbers = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]

    def globals_now() -> list[object]:
        loggers = [logging.getLogger(name) for name in ("", "tidelog", "asyncio")]
        return [
            [signal.getsignal(number) for number in numbers],
            signal.set_wakeup_fd(-1),
            [(logger.level, list(logger.handlers), logger.propagate) for logger in loggers],
            type(asyncio.get_event_loop_policy()),
            Path.cwd(),
            os.umask(0o022),
            dict(os.environ),
            threading.excepthook,
        ]

    os.umask(0o022)
    before = globals_now()
    with Broker() as broker:
        assert accepts(broker.bootstrap)
        assert globals_now() == before
    assert globals_now() == before


@BOTH
def test_given_data_stays_and_is_found_again(process: bool, tmp_path: Path) -> None:
    with Broker(process=process, data=tmp_path / "data") as broker:
        write(broker, "orders", "a")
    with Broker(process=process, data=str(tmp_path / "data")) as broker:
        write(broker, "orders", "b")
        assert read(broker, "orders", 2) == ["a", "b"]
    assert (tmp_path / "data" / "meta.properties").exists()


@BOTH
def test_a_restart_keeps_data_and_port(process: bool) -> None:
    with Broker(process=process) as broker:
        write(broker, "orders", "a")
        address = broker.bootstrap
        broker.restart()
        assert broker.bootstrap == address
        assert read(broker, "orders", 1) == ["a"]


def test_a_killed_process_starts_again_on_its_data() -> None:
    with Broker(process=True) as broker:
        write(broker, "orders", "a")
        address, pid = broker.bootstrap, broker.pid
        broker.kill()
        assert not accepts(address)
        broker.restart()
        assert broker.bootstrap == address
        assert broker.pid != pid
        assert read(broker, "orders", 1) == ["a"]


def test_a_thread_cannot_be_killed() -> None:
    with Broker() as broker, pytest.raises(RuntimeError, match=r"Broker\(process=True\)"):
        broker.kill()


@BOTH
def test_settings_have_kafkas_names_and_the_environment_is_not_looked_at(
    process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_LOG_RETENTION_HOURS", "no number at all")
    with Broker(process=process, settings={"num.partitions": 3, "auto.create.topics.enable": True}) as broker:
        write(broker, "orders", "a")
        metadata = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20)
        assert len(metadata.topics["orders"].partitions) == 3


@BOTH
def test_why_it_did_not_start(process: bool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(BrokerFailedError, match=str(tmp_path / "file")),
        Broker(process=process, data=tmp_path / "file"),
    ):
        pytest.fail("it started")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@BOTH
def test_a_wrong_setting_is_that_of_the_settings(process: bool, temporary: Path) -> None:
    broker = Broker(process=process, settings={"num.partition": 3})
    with pytest.raises(BrokerFailedError) as raised:
        broker.start()
    assert str(raised.value) == "unknown setting num.partition (settings); did you mean num.partitions?"
    assert broker.data is None
    assert not list(temporary.iterdir())
    with pytest.raises(BrokerFailedError, match=r"num\.partitions: .* \(settings\)"):
        Broker(process=process, settings={"num.partitions": "many"}).start()


@BOTH
def test_a_start_that_fails_leaves_no_directory_and_says_why_in_python(process: bool, temporary: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = Broker(process=process, port=port)
        with pytest.raises(BrokerFailedError) as raised:
            broker.start()
    assert str(raised.value) == (
        f"127.0.0.1:{port} is in use: stop the program that listens there, or choose another address "
        "with host= and port= (port 0 chooses a free port)"
    )
    assert not list(temporary.iterdir())
    broker.start()  # whoever listened there has gone
    broker.stop()
    assert not list(temporary.iterdir())


def test_a_start_that_fails_later_keeps_the_records_until_the_end(temporary: Path) -> None:
    with Broker(process=True) as broker:
        write(broker, "orders", "a")
        broker.kill()
        with (
            socket.create_server(("127.0.0.1", broker.port)),
            pytest.raises(BrokerFailedError, match="is in use: stop the program that listens there"),
        ):
            broker.start()
        broker.start()
        assert read(broker, "orders", 1) == ["a"]
    assert not list(temporary.glob("tidelog-*"))


FORGETFUL = """
import os, sys
from tidelog.testing import Broker

broker = Broker(process={process})
broker.start()
print(broker.data, flush=True)
if {fork}:
    child = os.fork()
    if not child:
        sys.exit()
    os.waitpid(child, 0)
    assert broker.data.exists(), "not the child's to remove"
if {ends_badly}:
    raise SystemExit(3)
"""


@BOTH
@pytest.mark.parametrize("ends_badly", [False, True])
@pytest.mark.parametrize("fork", [False, True])
def test_a_program_that_forgets_to_stop_it_leaves_no_directory(
    temporary: Path, process: bool, fork: bool, ends_badly: bool
) -> None:
    code = FORGETFUL.format(process=process, fork=fork, ends_badly=ends_badly)
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert result.returncode == (3 if ends_badly else 0), result.stderr
    assert Path(result.stdout.strip()).parent == temporary
    assert list(temporary.iterdir()) == []
    assert result.stderr == ""


@pytest.mark.parametrize("name", ["listeners", "log.dirs", "log.dir"])
def test_settings_that_are_arguments(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot be in settings: use the parameters host, port and data"):
        Broker(settings={name: "x"})


def test_a_process_that_ended_by_itself_is_told() -> None:
    broker = Broker(process=True)
    broker.start()
    os.kill(broker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(BrokerFailedError, match=r"ended by itself \(exit code -9\)"):
        broker.stop()
    assert broker.data is None


def test_a_thread_whose_directories_failed_ends_and_is_told(
    leaves_nothing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process: a broker without a directory is of no use, however long it is left running."""
    made: list[tuple[BrokerServer, asyncio.AbstractEventLoop]] = []

    class Kept(BrokerServer):
        async def start(self) -> None:
            await super().start()
            made.append((self, asyncio.get_running_loop()))

    monkeypatch.setattr("tidelog.testing.thread.BrokerServer", Kept)
    broker = Broker()
    broker.start()
    address = broker.bootstrap
    [(running, loop)] = made
    partitions = running.services.partitions
    loop.call_soon_threadsafe(partitions.fail_soon, partitions.directories.paths[0], "Input/output error")
    deadline = time.monotonic() + 20
    while accepts(address):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(BrokerFailedError, match=r"the broker failed: .*Input/output error"):
        broker.stop()
    broker.stop()
    made.clear()


def test_the_log_of_a_process() -> None:
    with Broker(process=True, settings={"log.cleaner.threads": 2}) as broker:
        assert "tidelog.broker setting has no effect yet name=log.cleaner.threads" in broker.log()
    with pytest.raises(RuntimeError, match="does not run"):
        broker.log()


def test_it_runs_once() -> None:
    broker = Broker()
    with pytest.raises(RuntimeError, match="no port before it starts"):
        broker.bootstrap  # noqa: B018
    with broker:
        with pytest.raises(RuntimeError, match="runs already"):
            broker.start()
        assert broker.pid == os.getpid()
        assert broker.log() == ""
    broker.stop()


def test_settings_as_text() -> None:
    assert [setting_text(value) for value in (True, False, 3, "a", ["a", 1])] == ["true", "false", "3", "a", "a,1"]
    assert TEST_SETTINGS["group.initial.rebalance.delay.ms"] == "0"
