"""The supervisor of `tidelog start --brokers N`. Its children here are small programs that behave as brokers do."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidelog.cli.brokers_of_host import BrokerPlan
from tidelog.cli.supervisor import without_plan

LIMIT_S = 30.0

SUPERVISOR = """
import asyncio, json, logging, sys
from tidelog.cli import supervisor
from tidelog.cli.brokers_of_host import BrokerPlan
from tidelog.cli.logs import configure_logging
from tidelog.cli.supervisor_lines import LineReporter
from tidelog.config.endpoints import Endpoint

configure_logging("info")
supervisor.RESTART_MIN_S, supervisor.STOP_S = 0.05, {stop_s}
programs = json.loads(sys.argv[1])

class Leases:
    async def prepare(self):
        logging.getLogger("test").info("leases prepared")

    async def controller(self):
        return {controller}
    async def end(self, number, directories):
        logging.getLogger("test").info("leases ended number=%d directories=%s", number, directories)

def command(plan, pipe):
    listeners = plan.settings["listeners"]
    return [sys.executable, "-c", programs[plan.number - 1], str(plan.number), str(pipe), listeners]

plans = [
    BrokerPlan(n, {{"listeners": "PLAINTEXT://h:0"}}, (Endpoint("PLAINTEXT", "h", 0),), [f"/d/broker-{{n}}"])
    for n in range(1, len(programs) + 1)
]

async def main():
    return await supervisor.Supervisor(plans, command, LineReporter({as_json}), Leases()).run()

sys.exit(asyncio.run(main()))
"""

SERVE = """
import json, os, select, signal, sys
number, pipe, listeners = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
port = int(listeners.rpartition(":")[2]) or 9000 + number
def say():
    print(json.dumps({"event": "serving", "broker": number, "host": "h", "port": port, "data": ["/d"],
                      "cluster_id": "c", "pid": os.getpid()}), flush=True)
"""
BROKER = SERVE + "signal.signal(signal.SIGTERM, lambda *a: os._exit(0)); say()\nos.read(pipe, 1); os._exit(0)\n"
"""Serves until SIGTERM, or until the supervisor has ended."""
STUBBORN = SERVE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); say()\nos.read(pipe, 1)\n"
"""Ignores SIGTERM."""
FAILS = 'import sys; print("Error: broker does not start", file=sys.stderr); sys.exit(1)'


class Running(NamedTuple):
    process: "subprocess.Popen[str]"
    events: "Iterator[dict[str, Any]]"
    """The lines on stdout, as JSON."""

    def serving(self, count: int) -> dict[int, int]:
        """Wait until this many brokers have served, and return their process ids by number."""
        pids: dict[int, int] = {}
        while len(pids) < count:
            event = next(self.events)
            if event["event"] == "serving":
                pids[event["broker"]] = event["pid"]
        return pids

    def end(self, *signals: int) -> str:
        """Send the signals, wait for the end, and return the log."""
        for number in signals:
            self.process.send_signal(number)
        return self.process.communicate(timeout=LIMIT_S)[1]


@pytest.fixture
def supervise() -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def run(*programs: str, controller: int | None = None, stop_s: float = 60, as_json: bool = True) -> Running:
        code = SUPERVISOR.format(stop_s=stop_s, controller=controller, as_json=as_json)
        process = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(programs)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        return Running(process, map(json.loads, process.stdout))

    yield run
    for process in started:
        process.kill()
        process.communicate()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "\nState:\tZ" not in status.read_text()


def wait_until_dead(pids: "dict[int, int]") -> None:
    deadline = time.monotonic() + LIMIT_S
    while any(map(is_alive, pids.values())):
        assert time.monotonic() < deadline, "a broker has outlived the supervisor"
        time.sleep(0.01)


def stop_order(log: str) -> list[int]:
    return [int(line.split("node=")[1].split()[0]) for line in log.splitlines() if "broker stopping" in line]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_brokers_one_after_another_the_controller_last(supervise: Any, number: int) -> None:
    running = supervise(BROKER, BROKER, BROKER, controller=2)
    pids = running.serving(3)
    log = running.end(number)
    assert running.process.returncode == 0, log
    assert stop_order(log) == [3, 1, 2]
    wait_until_dead(pids)


def test_the_lines_on_stdout(supervise: Any) -> None:
    running = supervise(BROKER, BROKER, as_json=False)
    assert running.process.stdout is not None
    lines = [running.process.stdout.readline() for _ in range(3)]
    running.end(signal.SIGTERM)
    begins = sorted(line.partition(" (data /d, process ")[0] for line in lines[:2])
    assert begins == ["Broker 1 listening on h:9001", "Broker 2 listening on h:9002"]
    assert lines[2] == "Ready: 2 brokers, cluster ID c, bootstrap h:9001,h:9002\n"


def test_the_lines_as_json(supervise: Any) -> None:
    running = supervise(BROKER)
    first, second = next(running.events), next(running.events)
    running.end(signal.SIGTERM)
    assert first["event"] == "serving"
    assert (first["broker"], first["host"], first["port"]) == (1, "h", 9001)
    assert second == {"event": "ready", "brokers": 1, "cluster_id": "c", "bootstrap": "h:9001"}


def test_a_broker_that_dies_starts_again_on_its_port_and_its_leases_end(supervise: Any) -> None:
    running = supervise(BROKER, BROKER)
    pids = running.serving(2)
    os.kill(pids[2], signal.SIGKILL)
    ended = next(event for event in running.events if event["event"] == "ended")
    assert ended == {"event": "ended", "broker": 2, "pid": pids[2], "exit_code": -9, "restart_in_s": 0.05}
    again = next(event for event in running.events if event["event"] == "serving")
    assert (again["broker"], again["port"]) == (2, 9002)
    assert again["pid"] != pids[2]
    log = running.end(signal.SIGTERM)
    assert f"tidelog.supervisor broker ended node=2 pid={pids[2]} exit=SIGKILL restart_in_s=0.1\n" in log
    assert "leases ended number=2 directories=['/d/broker-2']\n" in log
    assert log.count("leases prepared\n") == 1
    assert log.index("leases prepared") < log.index("leases ended")
    assert running.process.returncode == 0, log


def test_a_broker_that_does_not_start_is_tried_again_with_longer_pauses(supervise: Any) -> None:
    running = supervise(BROKER, FAILS)
    pauses: list[float] = []
    for event in running.events:
        if event["event"] == "ended":
            pauses.append(event["restart_in_s"])
        if len(pauses) == 3:
            break
    assert pauses == [0.05, 0.1, 0.2]
    running.end(signal.SIGTERM)
    assert running.process.returncode == 1, "a broker did not stop cleanly"


def test_if_no_broker_starts_the_supervisor_ends(supervise: Any) -> None:
    running = supervise(FAILS, FAILS)
    log = running.end()
    assert running.process.returncode == 1
    assert log.count("Error: broker does not start") >= 2


def test_a_second_signal_kills_the_brokers(supervise: Any) -> None:
    running = supervise(STUBBORN, STUBBORN)
    pids = running.serving(2)
    running.process.send_signal(signal.SIGINT)
    assert running.process.stderr is not None
    while "broker stopping" not in running.process.stderr.readline():
        pass
    log = running.end(signal.SIGINT)
    assert running.process.returncode == 130
    assert "stop=immediate signal=SIGINT" in log
    wait_until_dead(pids)


def test_a_broker_that_does_not_stop_is_killed(supervise: Any) -> None:
    running = supervise(STUBBORN, BROKER, stop_s=0.2)
    pids = running.serving(2)
    log = running.end(signal.SIGTERM)
    assert "broker killed because it has not stopped node=1" in log
    assert running.process.returncode == 1
    wait_until_dead(pids)


def test_a_paused_broker_stops_too(supervise: Any) -> None:
    running = supervise(BROKER)
    pids = running.serving(1)
    os.kill(pids[1], signal.SIGSTOP)
    log = running.end(signal.SIGTERM)
    assert running.process.returncode == 0, log


def test_no_broker_outlives_a_killed_supervisor(supervise: Any) -> None:
    running = supervise(BROKER, BROKER, BROKER)
    pids = running.serving(3)
    running.process.kill()
    wait_until_dead(pids)


def test_a_signal_before_any_broker_serves(supervise: Any) -> None:
    slow = "import os, signal, time; signal.signal(signal.SIGTERM, lambda *a: os._exit(0)); time.sleep(60)"
    running = supervise(slow, slow)
    timer = threading.Timer(0.3, running.process.terminate)
    timer.start()
    running.end()
    timer.join()
    assert running.process.returncode in (0, 1, -signal.SIGTERM)


@pytest.mark.parametrize(("numbers", "rest"), [({1, 2, 3, 5}, [5]), ({2, 5}, [5]), ({1, 2}, []), (set(), [])])
def test_brokers_with_data_that_are_not_started(numbers: set[int], rest: list[int]) -> None:
    plans = [BrokerPlan(number, {}, (), []) for number in (1, 2, 3)]
    assert without_plan(numbers, plans) == rest
