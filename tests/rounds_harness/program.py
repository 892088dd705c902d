"""Run rounds of faults against a cluster of three real broker processes, and check after each one that nothing is lost.

Producers with acks=all write numbered records, and two groups read and commit, while brokers are killed, paused or cut
off, disks are full, or the metadata store is away. After each round: every acknowledged record is at its offset,
records of a key are in order, idempotent producers have written nothing twice, committed offsets are neither lost nor
resurrected, the replicas are the same bytes and in sync, and no broker has logged an unexpected error.

Where it can, the program runs in Linux namespaces of its own: then it has a network whose links it cuts and small
disks that it fills, and leaves no process or mount behind. Otherwise these faults are skipped, with the reason.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from rounds_harness import namespaces
from rounds_harness.brokers import NUMBERS, machine_of
from rounds_harness.checks import shortened
from rounds_harness.faults import FAULTS, Fault, possible
from rounds_harness.life import Life, Result
from rounds_harness.namespaces import Network
from rounds_harness.stores import KINDS, Servers

ROUNDS_OF_A_LIFE = 20
"""Then the cluster is stopped and checked as a whole, and the next round begins with a new one."""


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/rounds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="faults:\n" + "\n".join(f"  {fault.name:22} {fault.text}" for fault in FAULTS),
    )
    parser.add_argument("--store", choices=KINDS, default="sqlite", help="the metadata store (default: sqlite)")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="the number of rounds (default: 10)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="chooses the faults (default: 1)")
    parser.add_argument("--first", type=int, default=1, metavar="I", help="begin with this round (default: 1)")
    parser.add_argument(
        "--fault", action="append", choices=[fault.name for fault in FAULTS], metavar="NAME",
        help="only this fault; may be repeated",
    )  # fmt: skip
    parser.add_argument("--resume", type=Path, metavar="FILE", help="append results to FILE, after those it has")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="for data and logs (default: a temporary one)")
    parser.add_argument("--life", type=int, default=ROUNDS_OF_A_LIFE, metavar="N", help="rounds of one cluster")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print the table of these results")
    return parser.parse_args(arguments)


def fault_of(number: int, seed: int, faults: list[Fault]) -> Fault:
    """Return the fault of a round: each one once, in an order that the seed determines, then again."""
    turn, place = divmod(number - 1, len(faults))
    return Random(f"{seed}/{turn}").sample(faults, len(faults))[place]


def read_results(path: Path) -> list[Result]:
    """Return the results that earlier runs have written; none if there is no such file."""
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


class Run:
    """The rounds of one call of the program."""

    def __init__(self, chosen: argparse.Namespace, reason: str) -> None:
        self._chosen = chosen
        self._reason = reason
        """Why there are no namespaces; empty if there are."""
        self._has_begun = False
        self._network = Network([*map(machine_of, NUMBERS), *Servers.machines]) if not reason else None
        self.results = read_results(chosen.resume) if chosen.resume is not None else []

    def rounds(self) -> list[str]:
        """Run the rounds until one has a violation. Return the violations."""
        first = max([self._chosen.first, *(result.number + 1 for result in self.results)])
        numbers = range(first, self._chosen.first + self._chosen.rounds)
        for begin in range(numbers.start, numbers.stop, self._chosen.life):
            if violations := self._life(range(begin, min(begin + self._chosen.life, numbers.stop))):
                return violations
        return []

    def _life(self, numbers: range) -> list[str]:
        chosen = self._chosen
        base = chosen.directory or Path(tempfile.mkdtemp(prefix="tidelog-rounds-"))
        directory = base.absolute() / f"{chosen.store}-{chosen.seed}-{numbers.start}"
        shutil.rmtree(directory, ignore_errors=True)
        life = Life(chosen.store, directory, self._network)
        faults, skipped = possible(chosen.store, life.abilities, self._reason)
        if not self._has_begun:
            self._has_begun = True
            print(f"store {chosen.store}, seed {chosen.seed}, data and logs below {directory}", flush=True)
            for name, why in skipped.items():
                print(f"skipped: {name}: {why}")
        if chosen.fault:
            faults = [fault for fault in faults if fault.name in chosen.fault]
        violations: list[str] = []
        if not faults:
            print("no fault remains")
        for number in numbers if faults else ():
            fault = fault_of(number, chosen.seed, faults)
            result = life.round(number, fault, Random(f"{chosen.seed}/{number}/{fault.name}"))
            self._report(result)
            if violations := result.violations:
                print(f"repeat: script/rounds {self._repeat(number, fault)}")
                break
        violations = violations or life.end()
        if violations:
            life.stop_clients()
            life.brokers.destroy()
            life.brokers.keep_data()
            print(f"kept: {directory}: broker-*.log, the clients' logs, and the data of the brokers")
        else:
            life.brokers.remove()
            if chosen.directory is None:
                shutil.rmtree(base, ignore_errors=True)
        return violations

    def _repeat(self, number: int, fault: Fault) -> str:
        chosen = self._chosen
        return f"--store {chosen.store} --seed {chosen.seed} --first {number} --rounds 1 --fault {fault.name}"

    def _report(self, result: Result) -> None:
        self.results.append(result)
        if self._chosen.resume is not None:
            with open(self._chosen.resume, "a") as file:
                file.write(json.dumps(result.as_json()) + "\n")
        print(
            f"round {result.number} {result.fault} brokers {result.victims}: unavailable {result.led_gap_s:.1f} s "
            f"where they led, {result.other_gap_s:.1f} s elsewhere; in sync after {result.in_sync_s:.1f} s; "
            f"{result.records} records, {result.commits} commits, {result.duplicates} duplicates without idempotence; "
            f"{result.seconds:.0f} s",
            flush=True,
        )
        for note in result.notes:
            print(f"  note: {note}")
        for violation in result.violations:
            print(f"  VIOLATION: {violation}", flush=True)


def table(results: list[Result]) -> str:
    """Return a table of Markdown: unavailable time by fault and store, where a victim led and elsewhere."""
    completed = [result for result in results if result.in_sync_s >= 0]
    stores = [kind for kind in KINDS if any(result.store == kind for result in completed)]
    lines = [f"| fault | {' | '.join(stores)} | rounds |", f"|---|{'---:|' * len(stores)}---:|"]
    for fault in FAULTS:
        rounds = [result for result in completed if result.fault == fault.name]
        if rounds:
            cells = [_times([result for result in rounds if result.store == kind]) for kind in stores]
            lines.append(f"| {fault.text} (`{fault.name}`) | {' | '.join(cells)} | {len(rounds)} |")
    return "\n".join(lines)


def _times(rounds: list[Result]) -> str:
    """Return median and largest time, of partitions that a victim led / of other partitions."""
    led = [result.led_gap_s for result in rounds if result.led_gap_s]
    others = [result.other_gap_s for result in rounds if result.other_gap_s]
    return " / ".join(f"{statistics.median(times):.1f} ({max(times):.1f})" if times else "-" for times in (led, others))


def main() -> int:
    chosen = parsed(sys.argv[1:])
    if chosen.table:
        print(table([result for path in chosen.table for result in read_results(path)]))
        return 0
    reason = namespaces.enter("rounds_harness.program", sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began_s = time.monotonic()
    run = Run(chosen, reason)
    violations = run.rounds()
    print(f"\nUnavailable seconds: median (largest), where a victim led / elsewhere\n\n{table(run.results)}\n")
    print(
        f"{chosen.store}: {len(run.results)} rounds, {sum(each.records for each in run.results)} records acknowledged, "
        f"{sum(each.commits for each in run.results)} commits, {len(violations)} violations, "
        f"{time.monotonic() - began_s:.0f} s" + (f"; the first: {shortened(violations, 1)[0]}" if violations else "")
    )
    sys.stdout.flush()
    # No thread of a client may delay the end.
    os._exit(1 if violations else 0)


if __name__ == "__main__":
    sys.exit(main())
