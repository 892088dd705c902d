"""The consume-transform-produce loop of each Python client, in processes that are killed at random, over two hops.

`script/chain` runs the same with 100,000 records.
"""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from chain_harness import PARTITIONS, Options, judge, run

CLIENT = "confluent-kafka"
IS_FULL = os.environ.get("TIDELOG_FULL") == "1"
pytestmark = [
    pytest.mark.tidelog_only,
    pytest.mark.exercises("transactional-offsets"),
    pytest.mark.timeout(2400 if IS_FULL else 500),
]


@pytest.mark.parametrize("brokers", [1, 3])
def test_every_record_arrives_exactly_once(brokers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("TIDELOG_CHAIN_SEED") or random.randrange(1 << 31))
    records, faults = (100_000, 1000) if IS_FULL and brokers == 3 else (2_000, 6)
    options = Options(records, brokers, seed, fault_every_s=2.0, faults_max=faults, limit_s=2000 if IS_FULL else 400)
    with capsys.disabled():
        print(f"chain seed {seed}, {brokers} brokers", flush=True)
        result = run(options, tmp_path, lambda line: None)
        print(f"{result.seconds:.0f} s, {dict(result.faults)}")
    logs = {path.name: path.read_text()[-500:] for path in tmp_path.glob("worker-*.log")}
    assert result.is_exact, (seed, result, logs)
    assert result.faults["worker killed"] + result.faults["broker killed"] > 0


@pytest.mark.parametrize("program", ["exactly_once_aiokafka.py", "exactly_once_kafka_python.py"])
def test_every_record_arrives_exactly_once_with_other_clients(program: str, tmp_path: Path) -> None:
    """The workers of aiokafka need one process for each partition."""
    seed = int(os.environ.get("TIDELOG_CHAIN_SEED") or random.randrange(1 << 31))
    options = Options(2_000, 3, seed, 2.0, faults_max=6, limit_s=400, program=program, workers=PARTITIONS)
    result = run(options, tmp_path, lambda line: None)
    logs = {path.name: path.read_text()[-500:] for path in tmp_path.glob("worker-*.log")}
    assert result.is_exact, (seed, result, logs)
    assert result.faults["worker killed"] + result.faults["broker killed"] > 0


def test_the_judge_finds_lost_duplicated_and_strange_records() -> None:
    exact = [b"booked booked %d" % number for number in range(4)]
    assert judge(exact, 4, Counter(), 1.0).is_exact
    result = judge([*exact[:2], exact[1], b"booked 3", b"booked booked 4"], 4, Counter(), 1.0)
    assert (result.lost, result.duplicated, result.strange) == ([2, 3], [1], [b"booked 3", b"booked booked 4"])
    assert not result.is_exact
