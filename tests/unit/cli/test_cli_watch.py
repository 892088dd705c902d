"""`tidelog group lag --watch` while its broker restarts, and the polling behind it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from process_harness.child import address_of, start
from process_harness.terminal import on_a_terminal
from tidelog.cli.errors import CommandError, NoAnswerError
from tidelog.cli.watching import PATIENCE_S, NoAnswerPeriod, Poller, polling

LIMIT_S = 60


class Restarted:
    """A broker that goes away and comes back at the same address."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = (directory / "log").open("wb")
        self._process = start(directory / "data", self._log)
        host, self._port = address_of(self._process)
        self.bootstrap = f"{host}:{self._port}"
        self.environment = os.environ | {"TIDELOG_BOOTSTRAP": self.bootstrap}

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(LIMIT_S) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(self) -> None:
        self._process = start(self._directory / "data", self._log, listen=self.bootstrap)
        assert address_of(self._process)[1] == self._port

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tidelog", *arguments]

    def run(self, *arguments: str, lines: str = "") -> None:
        command = self.command(*arguments)
        subprocess.run(command, input=lines, text=True, check=True, env=self.environment, timeout=LIMIT_S)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Restarted]:
    running = Restarted(tmp_path)
    try:
        running.run("topic", "create", "orders", "-p", "1")
        running.run("produce", "orders", lines="a\nb\nc\n")
        running.run("group", "reset-offsets", "billing", "--to-earliest", "--topic", "orders", "--execute")
        yield running
    finally:
        running.close()


WATCH = ("group", "lag", "--watch", "--interval", "0.2")


def test_a_watch_at_a_terminal_stays_while_the_broker_restarts(broker: Restarted) -> None:
    with on_a_terminal(broker.command(*WATCH), broker.environment, columns=100, lines=24) as watch:
        watch.expect(r"group billing  topic orders")
        watch.expect(r"all +3 ")
        broker.stop()
        outage = (
            rf"No answer from {broker.bootstrap} for (\d+) s; still trying\. Figures of \d\d:\d\d:\d\d; Ctrl-C stops\."
        )
        watch.expect(outage)
        watch.expect(r"all +3 ")  # the last figures
        watch.expect(outage)  # counted on
        broker.start()
        broker.run("produce", "orders", lines="d\n")
        watch.expect(r"all +4 ")
        assert watch.process.poll() is None

        broker.stop()
        watch.expect(outage)
        began = time.monotonic()
        watch.process.send_signal(signal.SIGINT)
        assert watch.process.wait(LIMIT_S) == 130
        assert time.monotonic() - began < 5


def test_a_watch_in_a_pipe_goes_on_when_the_broker_is_back(broker: Restarted) -> None:
    command = broker.command(*WATCH, "--json")
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=broker.environment)
    try:
        assert watch.stdout is not None
        assert watch.stderr is not None
        assert [one["lag"] for one in json.loads(watch.stdout.readline())["lag"]] == [3]
        broker.stop()
        line = watch.stderr.readline()
        assert line.startswith(f"No answer from {broker.bootstrap} for "), line
        broker.start()
        broker.run("produce", "orders", lines="d\n")
        assert watch.stderr.readline() == f"{broker.bootstrap} answers again.\n"
        while [one["lag"] for one in json.loads(watch.stdout.readline())["lag"]] != [4]:
            assert watch.poll() is None
    finally:
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=LIMIT_S)
    assert watch.returncode == 130


def test_errors_are_waited_out_but_the_first_one_is_not() -> None:
    results: list[int | Exception] = [1, CommandError("not now"), 2]
    go_on = threading.Semaphore(0)

    def request() -> int:
        assert go_on.acquire(timeout=LIMIT_S)
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    with polling(request, 0.001) as poller:
        assert poller.outage() is None
        go_on.release()
        first = poller.next(LIMIT_S)
        assert first is not None
        assert first.value == 1
        assert poller.outage() is None
        go_on.release()
        assert poller.next(LIMIT_S) is None
        outage = poller.outage()
        assert outage is not None
        assert outage.since_s == first.at_s
        assert outage.text("h:1", "7 s") == "not now; failing for 7 s, still trying."
        go_on.release()
        assert (second := poller.next(LIMIT_S)) is not None
        assert second.value == 2
        assert poller.outage() is None
        results.append(CommandError("never"))
    go_on.release()

    def fail() -> int:
        raise CommandError("no such group")

    with polling(fail, 60) as failing, pytest.raises(CommandError, match="no such group"):
        failing.next(LIMIT_S)


def test_a_defect_ends_a_watch() -> None:
    results = [1]
    with polling(results.pop, 0.001) as poller:
        assert poller.next(LIMIT_S) is not None
        with pytest.raises(IndexError):
            poller.next(LIMIT_S)


def test_a_look_that_takes_long_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    looks = iter([lambda: None, lambda: release.wait(LIMIT_S)])
    monkeypatch.setattr("tidelog.cli.watching.PATIENCE_S", 0.01)
    with polling(lambda: next(looks)(), 0.001) as poller:
        assert poller.next(LIMIT_S) is not None
        deadline = time.monotonic() + LIMIT_S
        while poller.outage() is None:
            assert poller.next(0.01) is None
            assert time.monotonic() < deadline
        outage = poller.outage()
        assert outage is not None
        assert outage.text("h:1", "7 s") == "No answer from h:1 for 7 s; still trying."
        release.set()
        assert poller.next(LIMIT_S) is not None


def test_how_an_outage_is_told() -> None:
    assert PATIENCE_S >= 1
    assert NoAnswerPeriod(0, NoAnswerError("x")).text("h:1", "1 s") == "No answer from h:1 for 1 s; still trying."
    assert Poller(lambda: 1, 1).outage() is None
