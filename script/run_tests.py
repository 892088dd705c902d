"""Runs the test suites part by part and tells what ran: called by `script/test`.

A part is one pytest run. Parts that spread over the cores by themselves, or that measure, run alone; the others two at
a time, each printed when it has ended. With --full every part runs with its full amounts (TIDELOG_FULL=1); parts that
have passed on this very commit are not run again, so an interrupted run can go on. The report is written to
.cache/test-report.md. With --coverage the lines and branches of the product are counted that the parts run, in the
brokers that they start as well; what was not run is listed in .cache/coverage-report.txt.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
CLOSING = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


class Part(NamedTuple):
    """`arguments` go to pytest; `beside`: its tests have no bound that another part's load could break."""

    name: str
    arguments: list[str]
    beside: bool = False
    full_environment: dict[str, str] = {}  # noqa: RUF012 - a tuple's default, never changed


AT_ONCE = 2
PARTS = [
    Part("unit", ["tests/unit", "tests/scenarios", "-n", "2"]),
    Part("property", ["tests/property", "-n", "2"], full_environment={"TIDELOG_EXAMPLES": "500"}),
    Part("crash", ["tests/crash"]),
    Part("hostile", ["tests/hostile"]),
    # The longest ones of the slice first, so that the last ones end together.
    Part("interop", ["tests/interop", "-n", "2", "--dist", "loadfile"], beside=True),
    Part("docs", ["tests/docs"], beside=True),
    Part("conformance", ["tests/conformance"], beside=True),
    Part("spark", ["tests/spark"], beside=True),
    Part("damage", ["tests/damage"], beside=True),
    Part("simulation", ["tests/simulation"], beside=True),
]


class Outcome(NamedTuple):
    name: str
    passed: bool
    counts: dict[str, int]
    seconds: float
    notes: list[str]
    """Lines that a suite says of itself: seeds, amounts."""


def run(part: Part, *, full: bool, coverage: bool) -> Outcome:
    environment = dict(os.environ)
    if full:
        environment |= {"TIDELOG_FULL": "1"} | part.full_environment
    print(f"\n== {part.name}{', printed when it ends' * part.beside}", flush=True)
    began = time.monotonic()
    measured = ["-m", "coverage", "run"] if coverage else []
    command = [sys.executable, *measured, "-m", "pytest", "-q", *part.arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    counts: dict[str, int] = {}
    notes: list[str] = []
    held: list[str] = []
    for line in process.stdout:
        if part.beside:
            held.append(line)
        else:
            print(line, end="", flush=True)
        if re.search(r"\bin [\d.]+s\b", line) and CLOSING.search(line):
            counts = {what: int(number) for number, what in CLOSING.findall(line)}
        elif line.startswith("note: "):
            notes.append(line.removeprefix("note: ").strip())
    code = process.wait()
    if held:
        print(f"\n== {part.name}\n{''.join(held)}", end="", flush=True)
    return Outcome(part.name, code == 0 and counts.get("passed", 0) > 0, counts, time.monotonic() - began, notes)


def run_all(parts: list[Part], *, full: bool, coverage: bool) -> Iterator[Outcome]:
    """Each part's outcome as it ends."""
    for part in parts:
        if not part.beside:
            yield run(part, full=full, coverage=coverage)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(run, part, full=full, coverage=coverage) for part in parts if part.beside]
        for ended in as_completed(running):
            yield ended.result()


def coverage_tool(*arguments: str) -> str:
    """What `coverage` prints. Its settings, the place of its data among them, are in pyproject.toml."""
    command = [sys.executable, "-m", "coverage", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def report_coverage() -> None:
    coverage_tool("combine", "--quiet")
    listed = coverage_tool("report")
    (CACHE / "coverage-report.txt").write_text(listed)
    print(f"\ncoverage, lines and branches: {listed.split()[-1]} (.cache/coverage-report.txt)")


def commit() -> str:
    """What is being tested; uncommitted changes make it unlike any other."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    dirty = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    return f"{head}+" if dirty else head


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/test", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the whole acceptance suite")
    parser.add_argument(
        "--part", action="append", choices=[p.name for p in PARTS], help="this part only; may come often"
    )
    parser.add_argument("--coverage", action="store_true", help="count the lines and branches that run")
    parser.add_argument("--list", action="store_true", help="name the parts")
    chosen = parser.parse_args()
    if chosen.list:
        print("\n".join(p.name for p in PARTS))
        return 0
    CACHE.mkdir(exist_ok=True)
    state_file = CACHE / "test-state.json"
    state = json.loads(state_file.read_text()) if state_file.exists() else {}
    this = f"{commit()} {'full' if chosen.full else 'slice'}{' coverage' * chosen.coverage}"
    done: dict[str, list[object]] = state.get(this, {}) if chosen.full and not this.split()[0].endswith("+") else {}
    wanted = [part for part in PARTS if not chosen.part or part.name in chosen.part]
    outcomes = {part.name: Outcome(*done[part.name]) for part in wanted if part.name in done}  # type: ignore[arg-type]
    for name in outcomes:
        print(f"\n== {name}: passed on this commit before")
    if chosen.coverage:
        coverage_tool("erase")
    left = [part for part in wanted if part.name not in outcomes]
    for outcome in run_all(left, full=chosen.full, coverage=chosen.coverage):
        outcomes[outcome.name] = outcome
        if outcome.passed:
            done[outcome.name] = list(outcome)
            state_file.write_text(json.dumps({this: done}))
    ordered = [outcomes[part.name] for part in wanted]
    report(ordered, this)
    if chosen.coverage:
        report_coverage()
    return 0 if all(o.passed for o in ordered) else 1


def report(outcomes: list[Outcome], what: str) -> None:
    lines = [f"Tests of {what}", "", "| part | passed | failed | skipped | wall time |", "|---|---:|---:|---:|---:|"]
    for o in outcomes:
        failed = o.counts.get("failed", 0) + o.counts.get("error", 0) + o.counts.get("errors", 0)
        lines.append(
            f"| {o.name} | {o.counts.get('passed', 0)} | {failed} | {o.counts.get('skipped', 0)} | {o.seconds:.0f} s |"
        )
    lines += ["", *(f"- {o.name}: {note}" for o in outcomes for note in o.notes)]
    (CACHE / "test-report.md").write_text("\n".join(lines) + "\n")
    print("\n" + "\n".join(lines))
    total = {w: sum(o.counts.get(w, 0) for o in outcomes) for w in ("passed", "failed", "skipped")}
    broken = [o.name for o in outcomes if not o.passed]
    if broken:
        print(f"failed parts: {', '.join(broken)}")
        total["failed"] = max(total["failed"], len(broken))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")


if __name__ == "__main__":
    sys.exit(main())
