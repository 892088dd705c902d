"""`tidelog start` without a process: flags, log lines, error messages, the order of events."""

import asyncio
import errno
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.cli import serve, start
from tidelog.cli.logs import OneLineFormatter
from tidelog.cli.start import FLAGS, HIDDEN_FLAGS, MisusedError, Options, parse
from tidelog.cli.start_help import start as start_command
from tidelog.config.broker_config import BrokerConfig, ConfigError
from tidelog.runtime.failures import IN_PYTHON, ON_THE_COMMAND_LINE, explain
from tidelog.runtime.interfaces import Runtime


def test_without_flags_nothing_is_set() -> None:
    assert parse([]) == Options(None, {}, "info", None)


def test_both_forms_of_a_flag() -> None:
    spaced = parse(["--config", "a.properties", "--data", "/d", "--listen", "h:1", "--log-level", "ERROR"])
    joined = parse(["--config=a.properties", "--data=/d", "--listen=h:1", "--log-level=error"])
    assert spaced == joined
    assert spaced == Options("a.properties", {"log.dirs": "/d", "listeners": "PLAINTEXT://h:1"}, "error", None)


def test_settings_repeat_and_the_last_of_a_key_counts() -> None:
    options = parse(["--set", "a.b=1", "--set=c=x=y", "--set", "a.b= 2 ", "--parent-pipe", "7"])
    assert options.settings == {"a.b": "2", "c": "x=y"}
    assert options.parent_pipe == 7


def test_a_relative_data_directory_is_that_of_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(["--data", "here"]).settings == {"log.dirs": str(tmp_path / "here")}
    config = serve.load_config(parse([]), {})
    assert config.data_directory == str(tmp_path / "tidelog-data")
    assert config.origins["log.dirs"] == "the default"
    (tmp_path / "k.properties").write_text("\nlog.dirs=here\n")
    config = serve.load_config(parse(["--config", "k.properties"]), {})
    assert (config.data_directory, config.origins["log.dirs"]) == (str(tmp_path / "here"), "k.properties:2")


def test_an_ipv6_host_stands_in_brackets() -> None:
    assert parse(["--listen", "[::1]:9092"]).settings == {"listeners": "PLAINTEXT://[::1]:9092"}
    with pytest.raises(MisusedError, match=r"in brackets, for example \[::1\]:9092"):
        parse(["--listen", "::1:9092"])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--lsiten", "a:1"], "no such option: --lsiten; did you mean --listen?"),
        (["-x"], "no such option: -x"),
        (["--port", "9093"], "no such option: --port; use --listen HOST:PORT"),
        (["--host=0.0.0.0"], "no such option: --host; use --listen HOST:PORT"),
        (["--log-dirs", "/d"], "no such option: --log-dirs; use --data DIR"),
        (["--override", "num.partitions=3"], "no such option: --override; use --set KEY=VALUE"),
        (["--num.partitions=3"], "no such option: --num.partitions; use --set num.partitions=VALUE"),
        (["server.properties"], "unexpected argument 'server.properties'; to use a file, add --config FILE"),
        (["orders"], "unexpected argument 'orders'"),
        (["--data"], "--data needs a value: --data DIR"),
        (["--data="], "--data needs a directory"),
        (["--data", "a", "--data", "b"], "--data occurs twice"),
        (["--set", "num.partitions"], "--set takes KEY=VALUE"),
        (["--set", "=3"], "--set takes KEY=VALUE"),
        (["--listen", "9092"], "--listen takes HOST:PORT, for example 127.0.0.1:9092, not '9092'"),
        (["--listen", ":9092"], "--listen takes HOST:PORT"),
        (["--listen", "h:65536"], "--listen takes HOST:PORT"),
        (["--listen", "h:9²"], "--listen takes HOST:PORT"),
        (["--log-level", "loud"], "--log-level must be one of debug, info, warning, error, not 'loud'"),
        (["--parent-pipe", "x"], "--parent-pipe takes a file descriptor, not 'x'"),
        (["--data", "a", "--set", "log.dirs=b"], "--data and --set log.dirs cannot be used together"),
        (["--listen", "h:1", "--set", "listeners=x"], "--listen and --set listeners cannot be used together"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"Error: {line}")
    assert printed.err.endswith("(see tidelog start --help)\n")
    assert printed.err.count("\n") == 1


def test_the_help_lists_the_flags_that_are_read() -> None:
    """`start` is read by `cli/start.py` and shown by typer: two lists of one thing."""
    shown = {"--" + name.replace("_", "-") for name in start_command.__annotations__ if name != "return"}
    assert shown == set(FLAGS) - set(HIDDEN_FLAGS)


# Log lines


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord("tidelog.log", logging.WARNING, "partition_log.py", 1, message, arguments, exc_info)
    made.created, made.msecs = 1767323045.678, 678.0
    return made


def test_a_log_line() -> None:
    line = OneLineFormatter().format(record("truncated path=%s bytes=%d", "/d/t-0", 12))
    assert line == "2026-01-02T03:04:05.678Z WARNING tidelog.log truncated path=/d/t-0 bytes=12"


def test_a_log_line_stays_one_line_whatever_a_peer_sends() -> None:
    line = OneLineFormatter().format(record("client=%s", "a\n2026 ERROR forged\x1b[31m é \udc80"))
    assert line.endswith("client=a\\n2026 ERROR forged\\x1b[31m é \\x80")


def test_a_traceback_is_folded_into_the_line() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        line = OneLineFormatter().format(record("task=flush", error=error))
    assert 'task=flush error="ValueError: first\\nsecond" trace="test_cli_start.py:' in line
    assert line.endswith('test_a_traceback_is_folded_into_the_line"')
    assert "\n" not in line


# Reasons of failure


class OurError(Exception):
    """As the broker's own errors: they say what is wrong in their text."""


OurError.__module__ = "tidelog.log.errors"


def os_error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path) if path else OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            os_error(errno.EADDRINUSE),
            "127.0.0.1:9092 is in use: stop the program that listens there, or choose another address with --listen",
        ),
        (os_error(errno.EADDRNOTAVAIL), "127.0.0.1:9092 is not an address of this machine"),
        (os_error(errno.EACCES), "no permission to listen on 127.0.0.1:9092"),
        (os_error(errno.EACCES, "/data/meta"), "/data/meta cannot be written (Permission denied): choose another"),
        (os_error(errno.EROFS, "/data"), "/data cannot be written (Read-only file system)"),
        (os_error(errno.ENOSPC), "no space is left for /data (No space left on device): free some space"),
        (os_error(errno.EMFILE), "Too many open files: raise the limit of open files"),
        (os_error(errno.ENOTDIR, "/data"), "/data is not a directory: choose another directory with --data DIR"),
        (
            os_error(errno.ENOTDIR, "/data/checkpoint"),
            "/data is not a directory: choose another directory with --data DIR",
        ),
        (os_error(errno.ENOENT, "/data"), "/data cannot be created (No such file or directory): choose another"),
        (BlockingIOError(errno.EWOULDBLOCK, "x"), "/data is in use by another broker"),
        (socket.gaierror(socket.EAI_NONAME, "Name not known"), "127.0.0.1:9092: unknown host (Name not known)"),
        (os_error(errno.EIO, "/data/t-0/0.log"), "/data/t-0/0.log: Input/output error"),
        (sqlite3.OperationalError("disk I/O error"), "the metadata store in /data: disk I/O error"),
        (OurError("/data/t-0\nis damaged"), "/data/t-0 is damaged"),
    ],
)
def test_reasons_are_one_line_with_what_to_do(error: Exception, line: str) -> None:
    told = explain(error, ["/data"], "127.0.0.1:9092", ON_THE_COMMAND_LINE)
    assert told.startswith(line)
    assert "\n" not in told
    assert "--" not in explain(error, ["/data"], "127.0.0.1:9092", IN_PYTHON)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (os_error(errno.ENOSPC, "/more/t-0/0.log"), "no space is left for /more ("),
        (os_error(errno.ENOSPC, "/more/deep/t-0/0.log"), "no space is left for /more/deep ("),
        (BlockingIOError(errno.EWOULDBLOCK, "x", "/more/.lock"), "/more is in use by another broker"),
        (os_error(errno.ENOTDIR, "/more/deep/x"), "/more/deep is not a directory"),
        (os_error(errno.EACCES), "no permission to listen on h:1"),
        (os_error(errno.ENOSPC, "/moreover"), "no space is left for /data ("),
        (os_error(errno.ENOSPC, "/more/deep/t-0"), "no space is left for /more/deep ("),
    ],
)
def test_a_reason_names_the_directory_that_failed(error: Exception, line: str) -> None:
    assert explain(error, ["/data", "/more", "/more/deep"], "h:1", ON_THE_COMMAND_LINE).startswith(line)


def test_a_defect_of_ours_says_so_and_logs_its_place(caplog: pytest.LogCaptureFixture) -> None:
    assert explain(KeyError("x"), ["/d"], "h:1", IN_PYTHON) == "internal error, please report it: KeyError: 'x'"
    assert caplog.records[0].exc_info is not None


# The order of events, with a broker that only tells what it is asked


class FakeBroker:
    host, port, cluster_id = "::1", 4711, "id"

    def __init__(self, config: BrokerConfig, runtime: Any) -> None:
        self.runtime = runtime
        self.events: list[str] = runtime.events

    async def start(self) -> None:
        self.events.append("start")
        if self.runtime.start_error is not None:
            raise self.runtime.start_error
        if self.runtime.start_hangs:
            self.runtime.after(lambda: os.kill(os.getpid(), signal.SIGTERM))
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                self.events.append("released")
        self.runtime.after(self.runtime.once_started)

    async def stop(self) -> None:
        self.events.append("stop")

    async def wait_for_failure(self) -> str:
        if self.runtime.failure is None:
            await asyncio.Event().wait()
        return str(self.runtime.failure)


class FakeRuntime(SimpleNamespace):
    def __init__(self, **what: Any) -> None:
        super().__init__(
            **({"events": [], "start_error": None, "start_hangs": False, "once_started": None, "failure": None} | what)
        )

    def after(self, action: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(action)

    async def close(self) -> None:
        self.events.append("close")


@pytest.fixture
def handlers() -> Iterator[None]:
    """The signal handlers as they were."""
    used = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    kept = {number: signal.getsignal(number) for number in used}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def run(runtime: FakeRuntime, parent_pipe: int | None = None) -> int:
    config = BrokerConfig.load(flags={"log.dirs": "/data"})
    options = Options(None, {}, "info", parent_pipe)
    with asyncio.Runner() as runner:
        return runner.run(serve.run_broker(config, FakeBroker, lambda: cast(Runtime, runtime), options))


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_says_where_it_listens_and_stops_in_order(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may ignore it
    runtime = FakeRuntime(once_started=lambda: os.kill(os.getpid(), number))
    assert run(runtime) == 0
    assert runtime.events == ["start", "stop", "close"]
    assert capsys.readouterr().out == "Tidelog 0.1.0 listening on [::1]:4711 (data /data, cluster ID id)\n"


@pytest.mark.usefixtures("handlers")
def test_a_handler_that_python_did_not_install_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python returns None for it, and cannot install it again."""
    install = signal.signal

    def without_former_handler(number: int, handler: Any) -> None:
        install(number, handler)

    monkeypatch.setattr(signal, "signal", without_former_handler)
    runtime = FakeRuntime(once_started=lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(runtime) == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("handlers")
def test_a_broker_that_cannot_go_on_stops_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "no usable data directory is left, because /data failed: Input/output error"
    runtime = FakeRuntime(failure=reason)
    assert run(runtime) == 1
    assert runtime.events == ["start", "stop", "close"]
    assert capsys.readouterr().err == f"Error: {reason}\n"


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_was_ignored_stays_ignored() -> None:
    """nohup starts programs so, and a shell its background jobs."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def still_running() -> None:
        runtime.events.append("still running")
        os.kill(os.getpid(), signal.SIGTERM)

    def once_started() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.get_running_loop().call_later(0.05, still_running)

    runtime = FakeRuntime(once_started=once_started)
    assert run(runtime) == 0
    assert runtime.events == ["start", "still running", "stop", "close"]


@pytest.mark.usefixtures("handlers")
def test_a_failed_start_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    runtime = FakeRuntime(start_error=ConfigError("unknown setting num.partition"))
    assert run(runtime) == 1
    assert runtime.events == ["start", "close"]
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Error: unknown setting num.partition\n")


@pytest.mark.usefixtures("handlers")
def test_a_signal_ends_a_start_that_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    runtime = FakeRuntime(start_hangs=True)
    assert run(runtime) == 0
    assert runtime.events == ["start", "released", "close"], "a failed start needs the runtime to undo its work"
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("handlers")
def test_the_end_of_the_parents_pipe_stops_it() -> None:
    reading, writing = os.pipe()
    try:
        runtime = FakeRuntime(once_started=lambda: os.close(writing))
        assert run(runtime, reading) == 0
        assert runtime.events == ["start", "stop", "close"]
    finally:
        os.close(reading)


SIGNALS_IN_A_ROW = """
import os, signal, sys, time
from types import SimpleNamespace
import uvloop
from tidelog.cli import serve
from tidelog.cli.start import Options
from test_cli_start import FakeBroker, FakeRuntime

config = SimpleNamespace(data_directories=["/data"], endpoints=[])

def once_started():
    loop = serve.asyncio.get_running_loop()
    assert not any(map(loop.remove_signal_handler, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)))
    broker = os.getpid()
    if os.fork() == 0:
        os.kill(broker, signal.SIGUSR1)
        until = time.perf_counter() + round * 4e-6
        while time.perf_counter() < until:
            pass
        os.kill(broker, signal.SIGTERM)
        os._exit(0)

async def stop(self):
    until = time.perf_counter() + 0.01
    while time.perf_counter() < until:
        await serve.asyncio.sleep(0)

FakeBroker.stop = stop
for round in range(60):
    reading, writing = os.pipe()
    runtime = FakeRuntime(once_started=once_started)
    with serve.asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        options = Options(None, {}, "info", reading)
        result = runner.run(serve.run_broker(config, FakeBroker, lambda: runtime, options))
    os.wait()
    assert result == 0, result
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_signal_just_after_another_counts_once() -> None:
    """The parent-death signal, then one to stop: taken twice, that would end the broker at once."""
    ended = subprocess.run(
        [sys.executable, "-c", SIGNALS_IN_A_ROW], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    assert (ended.returncode, ended.stderr.count("stop=immediate")) == (0, 0), ended.stderr


@pytest.mark.usefixtures("handlers")
@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_parent_death_signal_from_a_thread_that_ended_is_no_reason_to_stop() -> None:
    reading, writing = os.pipe()

    def still_running() -> None:
        runtime.events.append("still running")
        os.kill(os.getpid(), signal.SIGTERM)

    def once_started() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        asyncio.get_running_loop().call_later(0.05, still_running)

    try:
        runtime = FakeRuntime(once_started=once_started)
        assert run(runtime, reading) == 0
        assert runtime.events == ["start", "still running", "stop", "close"]
    finally:
        os.close(reading)
        os.close(writing)


def test_a_broker_may_have_as_many_connections_as_the_machine_lets_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    script = (
        "import resource; from tidelog.cli import start;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard));"
        f"assert start.main(['--data', {str(tmp_path / 'file' / 'data')!r}]) == start.FAILED;"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(said.stdout) > 128
