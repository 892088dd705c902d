"""The demonstration from start to end: with its pipeline on Spark, and on three brokers of which one is killed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines_harness import read_topic
from tidelog.demo.checker import event_id
from tidelog.demo.orders import EVENTS, REORDERS
from tidelog.testing import Broker

LIMIT_S = 120
"""The demonstration has to end within two minutes."""


def run_the_sale(*options: str) -> str:
    """Run the demonstration, and return what it prints."""
    ended = subprocess.run(
        [sys.executable, "-m", "tidelog", "demo", "flash-sale", "--orders-per-s", "2000", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "Every order accounted for" in ended.stdout
    return ended.stdout


def test_every_order_is_accounted_for_although_a_broker_is_killed(tmp_path: Path) -> None:
    out = run_the_sale("--brokers", "3", "--no-spark", "--directory", str(tmp_path / "sale"))
    assert re.search(r"broker [123] killed with -9: [1-9]\d* leaders moved in [\d.]+ s \(.* to broker", out)
    assert re.search(r"broker [123] started again", out)
    assert re.search(r"Longest wait for an acknowledgement: [\d.]+ s for an order, [\d.]+ s for an", out)


def test_the_pipeline_sums_up_the_sales_and_suggests_reorders(tmp_path: Path) -> None:
    """The sale's checker has compared the units in Parquet with the ledger. Here the reorders are compared with the
    events.
    """
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    sale = tmp_path / "sale"
    assert "Best sellers, from Parquet" in run_the_sale("--bursts", "1", "--directory", str(sale))
    [status] = (sale / "pipelines").glob("*/status.json")
    figures = json.loads(status.read_text())
    assert (figures["state"], figures["restarts"], figures["error"]) == ("done", 0, None)
    with Broker(data=sale / "broker", process=True) as broker:
        events = {event_id(message): json.loads(message.value()) for message in read_topic(broker.bootstrap, EVENTS)}
        suggested = [(m.key(), json.loads(m.value())) for m in read_topic(broker.bootstrap, REORDERS)]
    lowest: dict[str, int] = {}
    for event in events.values():
        product, left = event["product"], event["stock_left"]
        lowest[product] = min(left, lowest.get(product, left))
    expected = {product.encode(): left for product, left in lowest.items() if left < 10}
    found: dict[bytes, int] = {}
    for product, reorder in suggested:
        found[product] = min(reorder["stock_left"], found.get(product, reorder["stock_left"]))
        assert set(reorder) == {"stock_left", "missed"}
    assert found == expected != {}
