"""`script/simulate`: lives of a simulated cluster, one for each seed, spread over processes."""

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
  script/simulate --seeds 100 --jobs 2              a hundred lives of one virtual minute
  script/simulate --seeds 1 --first-seed 4711       the life of seed 4711 again, event by event the same
  script/simulate --seeds 3000 --state runs.json    goes on where it stopped
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
    parser.add_argument("--seeds", type=int, default=20, help="how many lives (20)")
    parser.add_argument("--first-seed", type=int, default=1, help="the first of the seeds, which follow each other (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one for each core)")
    parser.add_argument(
        "--profile", choices=[*PROFILES, "all"], default="all", help="which faults happen (all in turn)"
    )
    parser.add_argument("--brokers", type=int, default=1, help="brokers of the cluster (1)")
    parser.add_argument("--minutes", type=float, default=1.0, help="virtual minutes of each life (1)")
    parser.add_argument("--state", type=Path, help="a file that remembers the seeds that have passed")
    chosen = parser.parse_args()
    names = list(PROFILES) if chosen.profile == "all" else [chosen.profile]
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    known = f"{chosen.profile} {chosen.brokers} {chosen.minutes:g}"
    state = json.loads(chosen.state.read_text()) if chosen.state and chosen.state.exists() else {}
    passed = set(state.get(known, ()))
    wanted = [(seed, names[seed % len(names)]) for seed in seeds if seed not in passed]
    began = time.monotonic()
    coverage: Counter[str] = Counter()
    violations, virtual_s = 0, 0.0
    with ProcessPoolExecutor(chosen.jobs) as pool:
        lives = [pool.submit(run_quietly, seed, name, chosen.brokers, chosen.minutes) for seed, name in wanted]
        for (_, name), life in zip(wanted, lives, strict=True):
            outcome = life.result()
            coverage.update(outcome.coverage)
            virtual_s += outcome.virtual_s
            if outcome.failure is None:
                passed.add(outcome.seed)
                if chosen.state:
                    chosen.state.write_text(json.dumps(state | {known: sorted(passed)}))
                continue
            violations += 1
            again = f"--seeds 1 --first-seed {outcome.seed} --profile {name}"
            print(f"seed {outcome.seed} ({name}): {outcome.failure}")
            print(
                f"again: script/simulate {again} --brokers {chosen.brokers} --minutes {chosen.minutes:g}\n", flush=True
            )
    for event, count in sorted(coverage.items()):
        print(f"{event:<28}{count:>10,}")
    print(
        f"{len(wanted)} seeds, {violations} violations, {virtual_s / 60:.0f} virtual minutes, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
