"""The Java client's transactions, of version 2 and of version 1 (java/Transactions.java)."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_harness.java_tools import START_S, JavaTools
from interop_harness.suite import Unique, wait_until
from interop_harness.target import kafka_jars
from tidelog.testing import Broker

CLIENT = "Java kafka-clients and Kafka's tools"
pytestmark = pytest.mark.timeout(400)
PROGRAM = Path(__file__).parents[1] / "interop_harness/java/Transactions.java"
SCENARIOS = ["commit-and-abort", "fencing", "timeout", "classic-offsets", "consumer-offsets"]
LIMIT_S = 240


def started(bootstrap: str, prefix: str, errors: Path, *scenarios: str) -> "subprocess.Popen[str]":
    jars = kafka_jars()
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={jars}/log4j2.xml"]
    with errors.open("wb") as log:
        return subprocess.Popen(
            ["java", *options, "-cp", f"{jars}/*", str(PROGRAM), bootstrap, prefix, *scenarios],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


@pytest.fixture(params=[2, 1], ids=["version 2", "version 1"])
def version(request: pytest.FixtureRequest, java: JavaTools, bootstrap: str) -> Iterator[int]:
    """The transaction version of all clients: the finalized level of the feature, which UpdateFeatures changes."""
    level = int(request.param)

    def finalized() -> str:
        out = java.run("features", "--bootstrap-server", bootstrap, "describe").out
        found = re.search(r"transaction\.version.*FinalizedVersionLevel: (\d+)", out)
        return found[1] if found else ""

    def update(direction: str, to: int) -> None:
        feature = f"transaction.version={to}"
        java.run("features", "--bootstrap-server", bootstrap, direction, "--feature", feature)
        wait_until(lambda: finalized() == str(to), feature)

    java.run("cluster", "cluster-id", "--bootstrap-server", bootstrap, limit_s=START_S)
    assert finalized() == "2"
    if level != 2:
        update("downgrade", level)
    yield level
    if level != 2:
        update("upgrade", 2)


@pytest.mark.usefixtures("version")
@pytest.mark.exercises("transactions", "transactional-offsets")
def test_scenarios(bootstrap: str, unique: Unique, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    process = started(bootstrap, unique("java"), errors, *SCENARIOS)
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert sorted(output.splitlines()) == sorted(f"ok {name}" for name in SCENARIOS), errors.read_text()[-3000:]


@pytest.mark.tidelog_only
@pytest.mark.usefixtures("java")
@pytest.mark.exercises("transactions")
def test_the_broker_is_killed_in_the_middle_of_a_transaction(unique: Unique, tmp_path: Path) -> None:
    with Broker(process=True, data=tmp_path / "data") as broker:
        process = started(broker.bootstrap, unique("java"), tmp_path / "errors", "restart")
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "restart now\n", (tmp_path / "errors").read_text()[-3000:]
            broker.kill()
            broker.start()
            output, _ = process.communicate("continue\n", timeout=LIMIT_S)
        finally:
            process.kill()
        assert output == "ok restart\n"
