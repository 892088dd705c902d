"""`script/simulate`: simulate the life of a cluster once for each seed, in parallel processes."""

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from simulation_harness.cluster_faults import PROFILES
from simulation_harness.cluster_life import Outcome, run_seed

EXAMPLES = """examples:
  script/simulate --seeds 100 --jobs 2              simulate a hundred lives of one virtual minute
  script/simulate --seeds 1 --first-seed 4711       repeat the life of seed 4711, with the same events
  script/simulate --seeds 3000 --state runs.json    continue where the last run with this file stopped
"""


def run_quietly(seed: int, profile: str, brokers: int, minutes: float) -> Outcome:
    logging.disable(logging.CRITICAL)  # thousands of planned failures
    return run_seed(seed, PROFILES[profile], brokers=brokers, minutes=minutes)


def main() -> int:
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
        help="which faults happen (default: all profiles in turn)",
    )
    parser.add_argument("--brokers", type=int, default=1, help="number of brokers (default: 1)")
    parser.add_argument("--minutes", type=float, default=1.0, help="virtual minutes of each life (default: 1)")
    parser.add_argument("--state", type=Path, help="file that stores the seeds that have passed")
    options = parser.parse_args()
    names = list(PROFILES) if options.profile == "all" else [options.profile]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    state_key = f"{options.profile} {options.brokers} {options.minutes:g}"
    state = json.loads(options.state.read_text()) if options.state and options.state.exists() else {}
    passed = set(state.get(state_key, ()))
    runs = [(seed, names[seed % len(names)]) for seed in seeds if seed not in passed]
    began = time.monotonic()
    coverage: Counter[str] = Counter()
    violations, virtual_s = 0, 0.0
    with ProcessPoolExecutor(options.jobs) as pool:
        lives = [pool.submit(run_quietly, seed, name, options.brokers, options.minutes) for seed, name in runs]
        for (_, name), life in zip(runs, lives, strict=True):
            outcome = life.result()
            coverage.update(outcome.coverage)
            virtual_s += outcome.virtual_s
            if outcome.failure is None:
                passed.add(outcome.seed)
                if options.state:
                    options.state.write_text(json.dumps(state | {state_key: sorted(passed)}))
                continue
            violations += 1
            arguments = f"--seeds 1 --first-seed {outcome.seed} --profile {name}"
            print(f"seed {outcome.seed} ({name}): {outcome.failure}")
            print(
                f"repeat it: script/simulate {arguments} --brokers {options.brokers} --minutes {options.minutes:g}\n",
                flush=True,
            )
    for event, count in sorted(coverage.items()):
        print(f"{event:<28}{count:>10,}")
    print(
        f"{len(runs)} seeds, {violations} violations, {virtual_s / 60:.0f} virtual minutes, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
