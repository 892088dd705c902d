"""Real broker processes under faults, on each metadata store: `script/rounds`, with few rounds or with many."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from process_harness import FULL, note, seed_of
from store_harness.servers import require_servers

ROUNDS = {"sqlite": 100, "etcd": 50, "zookeeper": 50}
"""In a full run. In a normal run, the faults are these few."""
FAULTS = {
    "sqlite": ("kill-controller", "isolate", "kill-all"),
    "etcd": ("store-pause-all", "kill-broker", "pause-controller-long"),
    "zookeeper": ("store-kill-all", "kill-controller", "cut-from-brokers"),
}
LIMIT_S = 150 * max(ROUNDS.values()) if FULL else 600


@pytest.mark.parametrize("store", ROUNDS)
def test_nothing_acknowledged_is_lost_in_rounds_of_faults(store: str, tmp_path: Path) -> None:
    if store != "sqlite":
        require_servers()
    seed = seed_of(f"rounds on {store}")
    rounds = ROUNDS[store] if FULL else len(FAULTS[store])
    faults = [] if FULL else [text for fault in FAULTS[store] for text in ("--fault", fault)]
    command = [sys.executable, "-m", "rounds_harness.program", "--store", store, "--rounds", str(rounds)]
    tests = Path(__file__).resolve().parents[1]
    result = subprocess.run(
        [*command, "--seed", str(seed), "--directory", str(tmp_path), *faults],
        env=os.environ | {"PYTHONPATH": str(tests)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    last_line = result.stdout.splitlines()[-1]
    assert last_line.startswith(f"{store}: {rounds} rounds, ") or "skipped" in result.stdout, result.stdout
    assert " 0 violations" in last_line
    note(last_line)
