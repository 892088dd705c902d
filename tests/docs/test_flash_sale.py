"""The demonstration from start to end, on three brokers of which one is killed."""

import re
import subprocess
import sys
from pathlib import Path

LIMIT_S = 120
"""The demonstration has to end within two minutes."""


def test_every_order_is_accounted_for_although_a_broker_is_killed(tmp_path: Path) -> None:
    sale = tmp_path / "sale"
    options = ["--brokers", "3", "--no-spark", "--orders-per-s", "2000", "--directory", str(sale)]
    ended = subprocess.run(
        [sys.executable, "-m", "tidelog", "demo", "flash-sale", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "Every order accounted for" in ended.stdout
    assert re.search(r"broker [123] killed with -9: [1-9]\d* leaders moved in [\d.]+ s \(.* to broker", ended.stdout)
    assert re.search(r"broker [123] started again", ended.stdout)
    assert re.search(r"Longest wait for an acknowledgement: [\d.]+ s for an order, [\d.]+ s for an", ended.stdout)
