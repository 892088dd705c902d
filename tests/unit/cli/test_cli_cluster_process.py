"""`tidelog start --brokers 3` with real brokers, and `tidelog cluster` with them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidelog.testing import Cluster

LIMIT_S = 90.0
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}


class Running(NamedTuple):
    process: "subprocess.Popen[str]"
    log: Path
    events: "Iterator[dict[str, Any]]"

    def wait_for(self, kind: str) -> dict[str, Any]:
        return next(event for event in self.events if event["event"] == kind)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(LIMIT_S) == 0, self.log.read_text()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> Running:
        log = tmp_path / f"log-{len(started)}"
        with log.open("w") as errors:
            command = [sys.executable, "-m", "tidelog", "start", "--json", "--listen", "127.0.0.1:0"]
            process = subprocess.Popen(
                [*command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=errors, text=True, env=ENVIRONMENT
            )
        started.append(process)
        assert process.stdout is not None
        return Running(process, log, map(json.loads, process.stdout))

    yield start
    for process in started:
        process.kill()
        process.communicate()


def tidelog(bootstrap: str, *arguments: object, code: int = 0, stdin: str = "") -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "tidelog", *map(str, arguments)],
        capture_output=True,
        text=True,
        input=stdin,
        env=ENVIRONMENT | {"TIDELOG_BOOTSTRAP": bootstrap, "COLUMNS": "200"},
        timeout=LIMIT_S,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout if code in (0, 3) else ran.stderr


def wait_until_in_sync(bootstrap: str) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT_S
    while True:
        ran = subprocess.run(
            [sys.executable, "-m", "tidelog", "cluster", "status", "--json", "--bootstrap", bootstrap],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        )
        if ran.returncode == 0:
            status: dict[str, Any] = json.loads(ran.stdout)
            return status
        assert ran.returncode in (1, 3), ran.stderr
        assert time.monotonic() < deadline, ran.stdout + ran.stderr
        time.sleep(0.2)


def warned_of(bootstrap: str) -> list[str]:
    """Return the first word of each warning of `tidelog cluster status`."""
    status = json.loads(tidelog(bootstrap, "cluster", "status", "--json"))
    assert status["healthy"]
    return [warning.split()[0] for warning in status["warnings"]]


def values(count: int, first: int = 0) -> str:
    return "".join(f"{number}\n" for number in range(first, first + count))


def test_a_cluster_survives_the_death_of_a_broker(start: Any, tmp_path: Path) -> None:
    running = start("--brokers", 3, "--data", tmp_path / "cluster")
    pids: dict[int, int] = {}
    while len(pids) < 3:
        event = running.wait_for("serving")
        pids[event["broker"]] = event["pid"]
    bootstrap = running.wait_for("ready")["bootstrap"]
    tidelog(bootstrap, "topic", "create", "orders", "--partitions", 3)
    tidelog(bootstrap, "produce", "orders", "--acks", "all", stdin=values(30))
    status = wait_until_in_sync(bootstrap)
    assert [(broker["broker"], broker["leaders"], broker["replicas"]) for broker in status["brokers"]] == [
        (1, 1, 3), (2, 1, 3), (3, 1, 3),
    ]  # fmt: skip

    controller = int(re.findall(r" tidelog\.metadata controller node=(\d+) ", running.log.read_text())[-1])
    os.kill(pids[controller], signal.SIGKILL)
    assert running.wait_for("ended")["broker"] == controller
    tidelog(bootstrap, "produce", "orders", "--acks", "all", stdin=values(30, 30))
    assert running.wait_for("serving")["broker"] == controller
    wait_until_in_sync(bootstrap)
    read = tidelog(bootstrap, "consume", "orders", "--from-beginning", "-n", 60).split()
    assert sorted(map(int, read)) == list(range(60))
    log = running.log.read_text()
    assert f"lease of a dead broker released name=broker/{controller} " in log
    assert "lease of a dead broker released name=controller " in log

    tidelog(bootstrap, "cluster", "elect", "--json")
    described = json.loads(tidelog(bootstrap, "topic", "describe", "orders", "--json"))[0]["partitions"]
    assert [(part["under_replicated"], part["under_min_isr"], len(part["isr"])) for part in described] == [
        (False, False, 3)
    ] * 3
    running.stop()
    assert running.log.read_text().count(" tidelog.supervisor broker stopping ") == 3
    assert running.log.read_text().count(" tidelog.broker stopped ") == 3


def test_one_broker_grows_into_three(start: Any, tmp_path: Path) -> None:
    single = start("--data", tmp_path / "data", "--set", "offsets.topic.num.partitions=1")
    serving = single.wait_for("serving")
    bootstrap = f"{serving['host']}:{serving['port']}"
    tidelog(bootstrap, "topic", "create", "orders", "--partitions", 2)
    tidelog(bootstrap, "produce", "orders", stdin=values(20))
    tidelog(bootstrap, "consume", "orders", "--group", "readers", "--from-beginning", "-n", 20)
    single.stop()
    refused = start("--brokers", 3, "--data", tmp_path / "data")
    assert refused.process.wait(LIMIT_S) == 1
    assert "is the data directory of one broker (it contains meta.properties)" in refused.log.read_text()

    cluster = tmp_path / "cluster"
    cluster.mkdir()
    (tmp_path / "data").rename(cluster / "broker-1")
    assert not (cluster / "broker-1/metadata.sqlite-wal").exists()
    (cluster / "broker-1/metadata.sqlite").rename(cluster / "cluster.sqlite")
    running = start("--brokers", 3, "--data", cluster)
    bootstrap = running.wait_for("ready")["bootstrap"]
    levels = {each["feature"]: each for each in json.loads(tidelog(bootstrap, "cluster", "upgrade", "--json"))}
    assert levels["tidelog.metadata.version"]["level"] == 0
    assert warned_of(bootstrap) == ["tidelog.metadata.version", "__consumer_offsets"]
    upgraded = tidelog(bootstrap, "cluster", "upgrade", "--execute")
    assert "Upgraded: eligible.leader.replicas.version, tidelog.metadata.version." in upgraded
    assert warned_of(bootstrap) == ["__consumer_offsets"]
    tidelog(bootstrap, "cluster", "reassign", "--brokers", "1,2,3", "--replicas", 3, "--execute", "--watch")
    status = wait_until_in_sync(bootstrap)
    assert [broker["replicas"] for broker in status["brokers"]] == [3, 3, 3]
    assert warned_of(bootstrap) == []
    settings = json.loads(tidelog(bootstrap, "topic", "config", "orders", "--all", "--json"))
    assert settings["min.insync.replicas"]["value"] == "2"
    read = tidelog(bootstrap, "consume", "orders", "--from-beginning", "-n", 20).split()
    assert sorted(map(int, read)) == list(range(20))
    too_few = tidelog(bootstrap, "cluster", "drain", 3, code=1)
    assert (
        "broker 3 cannot be emptied: no other active broker is free for its replica of __consumer_offsets-0" in too_few
    )
    running.stop()


def replicas_of(bootstrap: str, topic: str) -> list[list[int]]:
    described = json.loads(tidelog(bootstrap, "topic", "describe", topic, "--json"))[0]["partitions"]
    return [part["replicas"] for part in described]


def settings_of(bootstrap: str, topic: str) -> set[str]:
    """Return the names of the settings that the topic itself has."""
    settings = json.loads(tidelog(bootstrap, "topic", "config", topic, "--json"))
    return {name for name, setting in settings.items() if setting["from"] == "topic"}


def test_replicas_are_moved_throttled_cancelled_and_drained(start: Any, tmp_path: Path) -> None:
    """A move that is throttled and cancelled changes nothing. A broker is emptied, filled again, and leads nothing."""
    running = start("--brokers", 3, "--data", tmp_path / "cluster", "--set", "auto.leader.rebalance.enable=false")
    bootstrap = running.wait_for("ready")["bootstrap"]
    tidelog(bootstrap, "topic", "create", "orders", "--partitions", 6, "--replicas", 2)
    # A throttled follower fetches 1 MB at once and then pauses for the whole window (11 s).
    records = "".join(f"{number:04}{'x' * 1000}\n" for number in range(3000))
    for index in range(6):
        tidelog(bootstrap, "produce", "orders", "--partition", index, "--acks", "all", stdin=records)
    before = replicas_of(bootstrap, "orders")
    assert [sorted(map(len, before)), len({tuple(sorted(pair)) for pair in before})] == [[2] * 6, 3]

    plan = tmp_path / "plan.json"
    moves = [
        {"topic": "orders", "partition": index, "replicas": [*pair[:1], *{1, 2, 3}.difference(pair)]}
        for index, pair in enumerate(before)
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    reassign = ("cluster", "reassign")
    started = tidelog(bootstrap, *reassign, "--plan", plan, "--execute", "--throttle", 1000)
    assert "Started: 6 partitions." in started
    assert len(json.loads(tidelog(bootstrap, *reassign, "--json"))) == 6
    status = json.loads(tidelog(bootstrap, "cluster", "status", "--json"))
    assert (status["healthy"], len(status["moving"]), status["under_replicated"]) == (True, 6, [])
    assert settings_of(bootstrap, "orders") == {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
    assert tidelog(bootstrap, *reassign, "--cancel") == "Cancelled: 6 moves.\n"
    assert tidelog(bootstrap, *reassign) == "No partition moves.\n"
    assert replicas_of(bootstrap, "orders") == before
    assert settings_of(bootstrap, "orders") == set()

    undo = tmp_path / "undo.json"
    done = tidelog(bootstrap, "cluster", "drain", 3, "--execute", "--undo", undo, "--throttle", 100_000_000)
    assert done.endswith("Done: 4 partitions.\n")
    assert [sorted(pair) for pair in replicas_of(bootstrap, "orders")] == [[1, 2]] * 6
    assert settings_of(bootstrap, "orders") == set()
    brokers = {broker["broker"]: broker for broker in json.loads(tidelog(bootstrap, "cluster", "brokers", "--json"))}
    assert (brokers[3]["leaders"], brokers[3]["replicas"]) == (0, 0)

    tidelog(bootstrap, *reassign, "--plan", undo, "--execute", "--throttle", 100_000_000)
    wait_until_in_sync(bootstrap)
    tidelog(bootstrap, *reassign, "--watch")
    assert settings_of(bootstrap, "orders")
    tidelog(bootstrap, *reassign, "--clear-throttle")
    assert settings_of(bootstrap, "orders") == set()
    assert replicas_of(bootstrap, "orders") == before
    tidelog(bootstrap, "cluster", "drain", 1, "--leaders", "--execute")
    brokers = {broker["broker"]: broker for broker in wait_until_in_sync(bootstrap)["brokers"]}
    assert (brokers[1]["leaders"], brokers[1]["replicas"]) == (0, 4)
    read = tidelog(bootstrap, "consume", "orders", "--from-beginning", "-n", 18_000).split()
    assert sorted(read) == sorted(records.split() * 6)
    running.stop()


def shown_in(bootstrap: str, code: int, *arguments: object, words: list[str]) -> str:
    """Repeat the command until its output has all the words. Return the output."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        ran = subprocess.run(
            [sys.executable, "-m", "tidelog", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=ENVIRONMENT | {"TIDELOG_BOOTSTRAP": bootstrap, "COLUMNS": "200"},
            timeout=LIMIT_S,
        )
        if ran.returncode == code and all(word in ran.stdout for word in words):
            return ran.stdout
        assert time.monotonic() < deadline, ran.stdout + ran.stderr
        time.sleep(0.1)


def test_partitions_with_trouble_are_visible(tmp_path: Path) -> None:
    with Cluster(3) as cluster:
        bootstrap = cluster.bootstrap
        tidelog(bootstrap, "topic", "create", "orders", "--partitions", 1)
        tidelog(bootstrap, "topic", "create", "alone", "--partitions", 1, "--replicas", 1)
        ((first,),) = replicas_of(bootstrap, "alone")
        second, third = (number for number in cluster.numbers if number != first)
        cluster.kill(first)
        words = ["fenced", "Partitions: 1 offline, 1 under min ISR, 2 under-replicated"]
        status = shown_in(bootstrap, 3, "cluster", "status", words=words)
        assert re.search(r"(?m)^alone +0 +offline +none ", status), status
        assert re.search(r"(?m)^orders +0 +under-replicated ", status), status
        assert "under-replicated" in tidelog(bootstrap, "topic", "describe", "orders")
        cluster.kill(second)
        status = shown_in(bootstrap, 3, "cluster", "status", words=["2 under min ISR"])
        row = rf"(?m)^orders +0 +under min ISR, under-replicated[a-z ,]* {third} +\d, \d, \d +{third} +{second}$"
        assert re.search(row, status), status
        described = tidelog(bootstrap, "topic", "describe", "orders")
        assert "under min ISR" in described
        assert re.search(rf"\b{second}\b", described), "the eligible leader replica"
        cluster.start(first)
        cluster.start(second)
        shown_in(
            bootstrap, 0, "cluster", "status", words=["Every partition has a leader, and all replicas are in sync"]
        )
