"""kill -9 while a producer writes at full rate and a group consumes: what was acknowledged is there, in order, once."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from workload import GROUP, PARTITIONS, TOPIC, Log, Workload, wait_until

from process_harness import amount, note, seed_of
from tidelog.testing import Broker

KILLS = amount(5, 100)
RECORDS_BETWEEN = (500, 60_000)


@pytest.mark.timeout(amount(300, 3600))
def test_every_acknowledged_record_is_there_in_order_once(tmp_path: Path) -> None:
    rng = random.Random(seed_of("kill -9"))
    began = time.monotonic()
    restarts: list[float] = []
    # Segments roll under the producer: kills fall between the files of a roll too.
    settings = {"log.segment.bytes": 8 << 20}
    with Broker(process=True, data=tmp_path / "data", settings=settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
            created.result()
        workload = Workload(broker)
        workload.start()
        checked = [0] * PARTITIONS
        for number in range(KILLS):
            goal = workload.total + rng.randrange(*RECORDS_BETWEEN)
            wait_until(lambda goal=goal: workload.total >= goal or bool(workload.wrong), "the producer goes on")  # type: ignore[misc]
            if number % 5 == 0:
                before = workload.consumed
                wait_until(lambda before=before: workload.consumed > before or bool(workload.wrong), "consuming")  # type: ignore[misc]
            broker.kill()
            acknowledged, committed = list(workload.acknowledged), list(workload.committed)
            restarted = time.monotonic()
            broker.restart()
            restarts.append(time.monotonic() - restarted)
            assert not workload.wrong, f"kill {number}: {workload.wrong[:5]}"
            with workload.at_rest():
                checked = check(broker, checked, acknowledged, committed)
        workload.stop()
        assert not workload.wrong, workload.wrong[:5]
        check(broker, [0] * PARTITIONS, workload.acknowledged, workload.committed)
    verify(tmp_path / "data")
    note(
        f"kill -9: {KILLS} kills, {workload.total} records acknowledged, {workload.consumed} consumed by {GROUP}, "
        f"restarts {min(restarts):.2f}..{max(restarts):.2f} s, {time.monotonic() - began:.0f} s in all"
    )


def check(broker: Broker, checked: list[int], acknowledged: list[int], committed: list[int]) -> list[int]:
    """Hold the log to what was promised before; returns how far it is known to be right."""
    log = Log(broker)
    try:
        found = log.committed()
        ends = [log.end(partition) for partition in range(PARTITIONS)]
        for partition, end in enumerate(ends):
            assert end >= acknowledged[partition], f"partition {partition} ends at {end}, {acknowledged} acknowledged"
            assert end >= checked[partition], f"partition {partition} ends at {end}, {checked} were seen"
            assert found[partition] <= end, f"partition {partition} ends at {end}, committed is {found}"
            assert found[partition] >= committed[partition], f"commits {committed} became {found}"
            log.check(partition, checked[partition], end)
        return ends
    finally:
        log.close()


def verify(data: Path) -> None:
    """`tidelog log verify` finds nothing in what a hundred crashes left."""
    command = [sys.executable, "-m", "tidelog", "log", "verify", str(data)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
