"""Kill the processes of a streaming query at random times, and check that it writes every record exactly once.

The query runs on a Spark cluster of this machine: a driver, and two executors in processes of their own. In each round,
records are written to the input topic, and while the query processes them, SIGKILL ends its driver, one or both of its
executors, a Python worker, or all of them. The driver is started again when it is dead. When the query has processed
all records, the output of the sink is compared with the input.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from spark_rounds_harness.checker import NotExactlyOnce
from spark_rounds_harness.rounds import KILLS, Life
from spark_rounds_harness.sinks import SINKS
from tidelog.testing import Broker


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/spark-rounds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sink", choices=SINKS, default="topic", help="the sink (default: topic)")
    parser.add_argument("--rounds", type=int, default=len(KILLS), metavar="N", help=f"default: {len(KILLS)}")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="chooses the times of the kills (default: 1)")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="brokers to use, instead of one of this checkout")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="for logs and checkpoints (default: temporary)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    chosen = parsed(arguments)
    began = time.monotonic()
    with ExitStack() as stack:
        bootstrap = chosen.bootstrap or stack.enter_context(Broker(process=True)).bootstrap
        folder = chosen.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-rounds-")))
        folder.mkdir(parents=True, exist_ok=True)
        life = Life(chosen.sink, bootstrap, folder, chosen.seed)
        stack.callback(life.close)
        for number in range(1, chosen.rounds + 1):
            try:
                result = life.run_round(number)
            except NotExactlyOnce as error:
                print(f"round {number} failed (--seed {chosen.seed}): {error}")
                return 1
            print(
                f"round {number}: killed {result.killed} ({result.processes} processes), {result.restarts} starts, "
                f"{life.count} records exactly once, {result.seconds:.0f} s",
                flush=True,
            )
    print(f"{chosen.rounds} rounds of sink {chosen.sink}: every record exactly once, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
