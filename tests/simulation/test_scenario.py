"""The real broker on virtual time, a memory network and a memory disk: one run, the same in every process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from process_harness import amount
from simulation_harness.scenario import PARTITIONS, TOPIC, run


@pytest.mark.parametrize("seed", range(amount(8, 200)))
def test_a_life_with_a_rebalance_a_power_cut_and_a_recovery(seed: int) -> None:
    trace, account = run(seed)
    assert sum(len(parts[TOPIC]) for parts in account.assignments[0].values()) == PARTITIONS
    assert [sorted(parts[TOPIC]) for parts in account.assignments[1].values()] == [list(range(PARTITIONS))]
    assert "host.cut_power" in trace


def test_the_same_seed_gives_the_same_trace_in_two_fresh_processes() -> None:
    script = "import sys; from simulation_harness.scenario import run; sys.stdout.write(run(42)[0])"
    traces = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[1])}
        command = [sys.executable, "-c", script]
        traces.append(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert traces[0] == traces[1]
    assert traces[0].count(b"\n") > 500
