"""`script/simulate`: simulate the life of a cluster once for each seed, in parallel processes."""

import argparse
import gc
import itertools
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from simulation_harness.cluster_faults import FAULTS
from simulation_harness.cluster_life import Outcome, run_seed
from simulation_harness.cluster_profiles import PROFILES

EXAMPLES = """examples:
  script/simulate --seeds 100 --jobs 2              simulate a hundred lives of one virtual minute
  script/simulate --seeds 1 --first-seed 4711       repeat the life of seed 4711, with the same events
  script/simulate --seeds 3000 --resume runs.json   store each result, and continue there after an interruption
  script/simulate --seeds 1 --first-seed 4711 --profile power --trace topic0-1
                                                    repeat a life and print its events that concern one partition
"""


class Run(NamedTuple):
    """One life to simulate."""

    seed: int
    profile: str
    brokers: int
    minutes: float
    trace: str | None
    faults: tuple[str, ...] = ()
    """If not empty: the only faults that happen."""

    @property
    def command(self) -> str:
        """The command that repeats this life."""
        return (
            f"script/simulate --seeds 1 --first-seed {self.seed} --profile {self.profile} "
            f"--brokers {self.brokers} --minutes {self.minutes:g}"
            + "".join(f' --fault "{fault}"' for fault in self.faults)
        )


class Results:
    """The results of all runs, which are stored in a file if there is one."""

    def __init__(self, path: Path | None, key: str) -> None:
        self._path = path
        self._key = key
        self._stored = json.loads(path.read_text()) if path is not None and path.exists() else {}
        stored = self._stored.setdefault(key, {"passed": [], "failed": {}, "virtual_s": 0.0, "coverage": {}})
        self.passed: set[int] = set(stored["passed"])
        self.failed: dict[int, str] = {int(seed): failure for seed, failure in stored["failed"].items()}
        self.virtual_s: float = stored["virtual_s"]
        self.coverage: Counter[str] = Counter(stored["coverage"])

    def add(self, outcome: Outcome) -> None:
        self.virtual_s += outcome.virtual_s
        self.coverage.update(outcome.coverage)
        if outcome.failure is None:
            self.passed.add(outcome.seed)
        else:
            self.failed[outcome.seed] = outcome.failure
        if self._path is not None:
            self._stored[self._key] = {
                "passed": sorted(self.passed),
                "failed": self.failed,
                "virtual_s": self.virtual_s,
                "coverage": self.coverage,
            }
            temporary = self._path.with_name(self._path.name + ".tmp")
            temporary.write_text(json.dumps(self._stored))
            temporary.replace(self._path)


LIVES_PER_COLLECTION = 16
"""During a life the garbage collector hardly runs, and a life leaves some 20 MB in cycles. Without a collection between
lives, a process that runs hundreds of them needs many GB."""
_LIVES = itertools.count(1)


def simulate(run: Run) -> Outcome:
    logging.disable(logging.CRITICAL)  # thousands of planned failures
    profile = PROFILES[run.profile]
    if run.faults:
        # The average number of faults stays the same.
        rate = sum(profile.faults.values()) / len(run.faults)
        profile = profile._replace(faults=dict.fromkeys(run.faults, rate))
    try:
        return run_seed(run.seed, profile, brokers=run.brokers, minutes=run.minutes, trace=run.trace)
    finally:
        if next(_LIVES) % LIVES_PER_COLLECTION == 0:
            gc.collect()


def outcomes(runs: list[Run], jobs: int) -> Iterable[tuple[Run, Outcome]]:
    """Yield the result of each run when it ends. Only a few runs wait in the pool, so that thousands need no memory."""
    if jobs == 1:
        yield from ((run, simulate(run)) for run in runs)
        return
    waiting = iter(runs)
    with ProcessPoolExecutor(jobs) as pool:
        pending: dict[Future[Outcome], Run] = {}
        while True:
            for run in waiting:
                pending[pool.submit(simulate, run)] = run
                if len(pending) >= 2 * jobs:
                    break
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                yield pending.pop(future), future.result()


def main() -> int:
    options = parse_options()
    names = [name for name, profile in PROFILES.items() if profile.brokers_min <= options.brokers]
    names = names if options.profile == "all" else [options.profile]
    brokers_min = PROFILES[names[0]].brokers_min
    if options.brokers < brokers_min:
        print(f"profile {names[0]} needs --brokers {brokers_min} or more", file=sys.stderr)
        return 2
    faults = tuple(options.fault)
    key = f"{options.profile} brokers={options.brokers} minutes={options.minutes:g}"
    results = Results(options.resume, key + "".join(f" {fault}" for fault in faults))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    runs = [
        Run(seed, names[seed % len(names)], options.brokers, options.minutes, options.trace, faults)
        for seed in seeds
        if seed not in results.passed and seed not in results.failed
    ]
    began = time.monotonic()
    for run, outcome in outcomes(runs, options.jobs):
        results.add(outcome)
        if outcome.trace:
            print(outcome.trace)
        if outcome.failure is not None:
            print(f"seed {run.seed} ({run.profile}): {outcome.failure}")
            print(f"repeat it: {run.command}\n", flush=True)
    if len(runs) < len(seeds):
        print(f"{len(seeds) - len(runs)} of the seeds were run before; their results are in {options.resume}")
    all_faults = dict.fromkeys(faults or (fault for name in names for fault in PROFILES[name].faults), 0)
    for event, count in sorted({**all_faults, **results.coverage}.items()):
        print(f"{event:<28}{count:>12,}")
    failed = [seed for seed in seeds if seed in results.failed]
    print(
        f"{len(seeds)} seeds, {len(failed)} violations, {results.virtual_s / 60:.0f} virtual minutes, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if failed else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/simulate",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=20, help="number of lives (default: 20)")
    parser.add_argument("--first-seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="number of processes (default: one for each core)"
    )
    parser.add_argument(
        "--profile",
        choices=[*PROFILES, "all"],
        default="all",
        help="which faults happen (default: all profiles in turn that this number of brokers allows)",
    )
    parser.add_argument("--brokers", type=int, default=1, help="number of brokers (default: 1)")
    parser.add_argument(
        "--fault",
        action="append",
        choices=list(FAULTS),
        default=[],
        metavar="FAULT",
        help='let only this fault happen, for example "kill"; may be repeated',
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="virtual minutes of each life (default: 1)")
    parser.add_argument(
        "--trace",
        metavar="all|PARTITION|HOST",
        help='print the events of each life: all, those of a partition ("topic0-1"), or those of a host ("broker-1"); '
        "by default the last events of the partition concerned are printed, if a promise was broken",
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="store results in this file, and skip the seeds that are in it"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
