"""Kill the processes of a streaming query at random times, and check that it writes every record exactly once.

The sinks whose names end with -key store one row for each key. For them, the records are versions of keys. After each
round there must be one row for each key, with its last version.

The query runs on a Spark cluster of this machine: a driver, and two executors in processes of their own. In each round,
records are written to the input topic, and while the query processes them, SIGKILL ends its driver, one or both of its
executors, a Python worker, or all of them. A kill counts as a round only if processes were killed before the query had
committed all records; otherwise it is repeated. The driver is started again when it is dead. When the query has
processed all records, the output of the sink is compared with the input.

With --results, each round is a line of JSON in the file. If the file has rounds of the sink already, the program
continues after them, with a new query and other times of the kills, until there are as many as --rounds says.
"""

import argparse
import json
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
    parser.add_argument("--results", type=Path, metavar="FILE", help="continue the rounds of this file")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="for logs and checkpoints (default: temporary)")
    return parser.parse_args(arguments)


def earlier_rounds(results: Path, sink: str) -> list[dict[str, object]]:
    """Return the rounds of the sink in a file of results; none if there is no file."""
    lines = results.read_text().splitlines() if results.exists() else []
    return [entry for entry in map(json.loads, lines) if entry["sink"] == sink]


def main(arguments: Sequence[str]) -> int:
    chosen = parsed(arguments)
    began = time.monotonic()
    done = len(earlier_rounds(chosen.results, chosen.sink)) if chosen.results else 0
    seed = chosen.seed + done
    with ExitStack() as stack:
        bootstrap = chosen.bootstrap or stack.enter_context(Broker(process=True)).bootstrap
        folder = chosen.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-rounds-")))
        folder.mkdir(parents=True, exist_ok=True)
        life = Life(chosen.sink, bootstrap, folder, seed)
        stack.callback(life.close)
        for number in range(done + 1, chosen.rounds + 1):
            try:
                result = life.run_round(number)
            except NotExactlyOnce as error:
                print(f"round {number} failed (--seed {seed}): {error}")
                return 1
            if chosen.results:
                entry = {"sink": chosen.sink, "seed": seed, "records": life.count, **result._asdict()}
                with chosen.results.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
            print(
                f"round {number}: killed {result.killed} ({result.processes} processes, after {result.misses} kills "
                f"without effect), {result.restarts} starts, "
                f"{result.checked}, {result.seconds:.0f} s",
                flush=True,
            )
    promise = SINKS[chosen.sink].contents.promise
    print(f"{chosen.rounds} rounds of sink {chosen.sink}: {promise}, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
