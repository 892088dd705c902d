"""What the READMEs say of speed is what the table in docs/performance.md shows, and so is the summary under it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THROUGHPUT = ("MB/s", "requests/s")
SUMMARY = {  # the summary's row: the table's, and how its latencies begin there
    "bulk produce, 4 x 1 MB": ("bulk produce", "rtt"),
    "bulk fetch, 4 x 1 MB": ("bulk fetch", "rtt"),
    "1 KB records, 4 x 16 KB requests": ("1 KB records produce", "rtt"),
    "small produce, 161 B, 100 connections": ("small produce", "rtt"),
    "end to end at 1,000/s": ("latency 1k/s", "e2e"),
    "acknowledgement at 1,000/s": ("latency 1k/s", "ack"),
    "end to end at 10,000/s": ("latency 10k/s", "e2e"),
    "acknowledgement at 10,000/s": ("latency 10k/s", "ack"),
}

Table = dict[tuple[str, str], dict[str, float]]


def rows(title: str) -> list[list[str]]:
    """The cells of the first table whose head begins so."""
    text = (ROOT / "docs" / "performance.md").read_text()
    lines = text[text.index(title) :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in [lines[0], *lines[2:]]]


@pytest.fixture(scope="module")
def measured() -> Table:
    """(row, figure): figures by server."""
    head, *body = rows("| row | figure | reference | kafka | tidelog |")
    table: Table = {}
    for row, figure, *cells in body:
        numbers = [cell.split(" (")[0].replace(",", "") for cell in cells]
        table[row, figure] = {name: float(n) for name, n in zip(head[2:], numbers, strict=True) if n != "-"}
    return table


def by_kafka(measured: Table, row: str, figure: str) -> float:
    found = measured[row, figure]
    return found["tidelog"] / found["kafka"]


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_the_readmes_say_what_was_measured(readme: str, measured: Table) -> None:
    text = (ROOT / readme).read_text()
    [claim] = [part for part in text.split("\n\n") if "docs/performance.md" in part and "MB" in part]
    numbers = [float(number) for number in re.findall(r"\d+\.\d+|\d+(?= MB)", claim)]
    throughput = [by_kafka(measured, *key) for key in measured if key[1] in THROUGHPUT]
    cpu = [by_kafka(measured, *key) for key in measured if key[1] == "cpu s"]
    start_s = measured["start", "s"]["tidelog"]
    idle_mb = measured["start", "idle RSS MB"]["tidelog"]
    latencies = {key: by_kafka(measured, *key) for key in measured if key[1].split()[0] in ("rtt", "e2e", "ack")}
    slower = latencies.pop(("bulk produce", "rtt p50 us"))  # the exception that both READMEs name
    said = [min(throughput), max(throughput), min(cpu), max(cpu), slower, start_s, idle_mb]
    assert numbers == [round(number, digits) for number, digits in zip(said, (1, 1, 2, 2, 2, 2, 0), strict=True)]
    assert max(latencies.values()) < 1


def test_the_summary_is_what_was_measured(measured: Table) -> None:
    _, *body = rows("| row | throughput | CPU for the same work |")
    assert [row for row, *_ in body] == list(SUMMARY)
    for summary, *cells in body:
        row, prefix = SUMMARY[summary]
        rate = next((figure for name, figure in measured if name == row and figure in THROUGHPUT), None)
        figures = [rate, None if prefix == "ack" else "cpu s", f"{prefix} p50 us", f"{prefix} p99 us"]
        for cell, figure in zip(cells, figures, strict=True):
            if figure is None:
                assert cell == "-"
            else:
                places = len(cell.partition(".")[2])
                assert cell == f"{by_kafka(measured, row, figure):.{places}f}", (summary, figure)
