"""The program behind script/chain."""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from chain_harness import Options, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="script/chain",
        description="Send records through two hops of transactional workers while workers and brokers are killed, and"
        " check that each record arrives exactly once.",
    )
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), help="of the faults")
    parser.add_argument("--fault-every", type=float, default=5.0, metavar="SECONDS", help="mean time between faults")
    parser.add_argument("--faults", type=int, default=1_000_000, metavar="N", help="kill nothing after N faults")
    parser.add_argument("--limit", type=float, default=1800.0, metavar="SECONDS", help="give up after this time")
    arguments = parser.parse_args()
    options = Options(
        arguments.records,
        arguments.brokers,
        arguments.seed,
        arguments.fault_every,
        arguments.faults,
        arguments.limit,
    )
    directory = Path(tempfile.mkdtemp(prefix="tidelog-chain-"))
    print(f"seed {options.seed}; the logs of the workers: {directory}", flush=True)
    result = run(options, directory, lambda line: print(line, flush=True))
    print(
        f"{options.records} records in {result.seconds:.0f} s; {dict(result.faults)}; lost {len(result.lost)}"
        f" {result.lost[:10]}, duplicated {len(result.duplicated)} {result.duplicated[:10]},"
        f" strange {len(result.strange)} {result.strange[:3]}"
    )
    return 0 if result.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())
