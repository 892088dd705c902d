"""Runs the test suites part by part and reports the results. `script/test` calls this script.

A part is one pytest run. Parts that use all cores by themselves, or that measure time, run alone. The other parts
run two at a time. The output of a part is printed when the part has ended. With --full, every part runs with its
full amounts (TIDELOG_FULL=1). Parts that have passed on the same commit do not run again, so that an interrupted run
can continue. The report is written to .cache/test-report.md. --coverage measures which lines and branches of the
product run, including those in the brokers that the tests start. The lines that did not run are listed in
.cache/coverage-report.txt.
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
FAILURE = re.compile(r"(?:FAILED|ERROR) (tests/\S+)")
"""A line of pytest's summary that names a test that failed."""
CLOSING = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


class Part(NamedTuple):
    """One pytest run. `may_share_cores` is true if no test of the part fails when another part uses the cores, too."""

    name: str
    arguments: list[str]
    may_share_cores: bool = False
    full_environment: dict[str, str] = {}  # noqa: RUF012 - the default of a tuple, which is never changed


AT_ONCE = 2
PARTS = [
    Part("unit", ["tests/unit", "tests/scenarios", "-n", "2"]),
    Part("property", ["tests/property", "-n", "2"], full_environment={"TIDELOG_EXAMPLES": "500"}),
    Part("crash", ["tests/crash"]),
    Part("hostile", ["tests/hostile"]),
    # The longest parts are listed first, so that the last two parts end at about the same time.
    Part("interop", ["tests/interop", "-n", "2", "--dist", "loadfile"], may_share_cores=True),
    Part("docs", ["tests/docs"], may_share_cores=True),
    # Three tests run at once, because they mostly wait for the end of leases, and for servers that start.
    Part("stores", ["tests/stores", "tests/rounds", "-n", "3"], may_share_cores=True),
    Part("conformance", ["tests/conformance"], may_share_cores=True),
    Part("spark", ["tests/spark"], may_share_cores=True),
    Part("pipelines", ["tests/pipelines"], may_share_cores=True),
    Part("damage", ["tests/damage"], may_share_cores=True),
    Part("simulation", ["tests/simulation"], may_share_cores=True),
]


class Outcome(NamedTuple):
    name: str
    passed: bool
    counts: dict[str, int]
    seconds: float
    notes: list[str]
    """Lines that the suite prints about its own run, such as seeds and amounts."""
    failures: tuple[str, ...] = ()
    """The tests that failed, as pytest takes them on its command line."""


def run(part: Part, *, full: bool, coverage: bool) -> Outcome:
    environment = dict(os.environ)
    if full:
        environment |= {"TIDELOG_FULL": "1"} | part.full_environment
    print(f"\n== {part.name}{' (output follows when it ends)' * part.may_share_cores}", flush=True)
    began = time.monotonic()
    coverage_command = ["-m", "coverage", "run"] if coverage else []
    command = [sys.executable, *coverage_command, "-m", "pytest", "-q", *part.arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    counts: dict[str, int] = {}
    notes: list[str] = []
    output_lines: list[str] = []
    failures: list[str] = []
    for line in process.stdout:
        if part.may_share_cores:
            output_lines.append(line)
        else:
            print(line, end="", flush=True)
        if re.search(r"\bin [\d.]+s\b", line) and CLOSING.search(line):
            counts = {result: int(number) for number, result in CLOSING.findall(line)}
        elif line.startswith("note: "):
            notes.append(line.removeprefix("note: ").strip())
        elif failure := FAILURE.match(line):
            failures.append(failure[1])
    process.stdout.close()
    code = process.wait()
    if output_lines:
        print(f"\n== {part.name}\n{''.join(output_lines)}", end="", flush=True)
    passed = code == 0 and counts.get("passed", 0) > 0
    return Outcome(part.name, passed, counts, time.monotonic() - began, notes, tuple(failures))


def run_all(parts: list[Part], *, full: bool, coverage: bool) -> Iterator[Outcome]:
    """Run the parts, and yield the outcome of each part when it ends."""
    for part in parts:
        if not part.may_share_cores:
            yield run(part, full=full, coverage=coverage)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(run, part, full=full, coverage=coverage) for part in parts if part.may_share_cores]
        for future in as_completed(running):
            yield future.result()


def coverage_tool(*arguments: str) -> str:
    """Return the output of `coverage`. Its settings, with the place of its data, are in pyproject.toml."""
    command = [sys.executable, "-m", "coverage", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def report_coverage() -> None:
    coverage_tool("combine", "--quiet")
    coverage_report = coverage_tool("report")
    (CACHE / "coverage-report.txt").write_text(coverage_report)
    print(f"\ncoverage, lines and branches: {coverage_report.split()[-1]} (.cache/coverage-report.txt)")


def commit() -> str:
    """Return the commit that is tested, with a + if there are uncommitted changes."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    dirty = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    return f"{head}+" if dirty else head


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/test", description=__doc__)
    parser.add_argument("--full", action="store_true", help="run the whole acceptance suite")
    parser.add_argument(
        "--part", action="append", choices=[p.name for p in PARTS], help="run this part only; may be repeated"
    )
    parser.add_argument("--coverage", action="store_true", help="measure which lines and branches run")
    parser.add_argument("--list", action="store_true", help="list the parts")
    chosen = parser.parse_args()
    if chosen.list:
        print("\n".join(p.name for p in PARTS))
        return 0
    CACHE.mkdir(exist_ok=True)
    state_file = CACHE / "test-state.json"
    state = json.loads(state_file.read_text()) if state_file.exists() else {}
    version = f"{commit()} {'full' if chosen.full else 'slice'}{' coverage' * chosen.coverage}"
    may_skip = chosen.full and not version.split()[0].endswith("+")
    passed_parts: dict[str, list[object]] = state.get(version, {}) if may_skip else {}
    selected = [part for part in PARTS if not chosen.part or part.name in chosen.part]
    outcomes = {part.name: Outcome(*passed_parts[part.name]) for part in selected if part.name in passed_parts}  # type: ignore[arg-type]
    for name in outcomes:
        print(f"\n== {name}: passed on this commit before")
    if chosen.coverage:
        coverage_tool("erase")
    remaining = [part for part in selected if part.name not in outcomes]
    for outcome in run_all(remaining, full=chosen.full, coverage=chosen.coverage):
        outcomes[outcome.name] = outcome
        if outcome.passed:
            passed_parts[outcome.name] = list(outcome)
            state_file.write_text(json.dumps({version: passed_parts}))
    ordered = [outcomes[part.name] for part in selected]
    report(ordered, version)
    if chosen.coverage:
        report_coverage()
    return 0 if all(o.passed for o in ordered) else 1


def report(outcomes: list[Outcome], version: str) -> None:
    lines = [f"Tests of {version}", "", "| part | passed | failed | skipped | wall time |", "|---|---:|---:|---:|---:|"]
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
        failures = [failure for o in outcomes for failure in o.failures]
        if failures:
            print("failed tests; to repeat one: .venv/bin/python -m pytest TEST")
            print("\n".join(f"  {failure}" for failure in failures))
        total["failed"] = max(total["failed"], len(broken))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")


if __name__ == "__main__":
    sys.exit(main())
