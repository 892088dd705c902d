"""`script/conform`: records Kafka's answers, compares a broker with them, shows them."""

import argparse
import contextlib
import fnmatch
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import brokers, conversation, recording, report, rules
from .compare import Bindings, Difference, Tally, compare_runs
from .conversation import Conversation, Run
from .exchange import Transcript, hold

CONVERSATIONS = Path(__file__).parent / "conversations"
DESCRIPTION = """Recorded answers of Apache Kafka 4.3.1, and the comparison of a broker with them.

  conform                                  start Tidelog and compare it with the recording
  conform --bootstrap HOST:PORT            compare the broker that runs there
  conform --record --bootstrap HOST:PORT   record the Kafka that runs there
  conform --record --kafka-command CMD     start Kafka, record it, stop it
  conform --show [--only PATTERN]          print the recording, decoded
  conform --try --bootstrap HOST:PORT      hold conversations and print them; nothing is compared or kept

A broker that is recorded or compared must be fresh: an empty data directory, and these settings:
    """


class Result:
    """What a comparison found."""

    def __init__(self) -> None:
        self.runs = 0
        self.tally = Tally()
        self.differences: list[Difference] = []
        self.seconds = 0.0


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = _chosen(options.only)
    if options.show:
        return _show(chosen, options.only)
    with _broker(options) as address:
        if options.record:
            return _record(chosen, address)
        if options.trial:
            return _try(chosen, address, options.only)
        result = compare(chosen, address, _rules(options.self_test), options.jobs, options.only)
    print(report.differences_text(result.differences))
    print(report.summary_text(result.runs, result.tally, len(result.differences), result.seconds))
    unused = [] if options.only else report.unused(_rules(options.self_test), result.tally)
    for rule in unused:
        print(f"not needed: {rule}")
    return 1 if result.differences or unused else 0


def compare(
    conversations: list[Conversation],
    address: tuple[str, int],
    allowed: rules.Rules,
    jobs: int = 4,
    only: str | None = None,
) -> Result:
    """Holds every run of the conversations with the broker, and compares each with its recording."""
    began = time.monotonic()
    result = Result()
    bindings = Bindings()
    recordings = {file: recording.read(file) for file in dict.fromkeys(c.file for c in conversations)}

    def one(run: Run) -> list[Difference]:
        recorded = recordings[run.conversation.file].get(run.name)
        if recorded is None or recorded.digest != run.conversation.digest:
            state = "not recorded" if recorded is None else "recorded from another text"
            return [Difference(run.name, "", 0, "-", -1, "@recording", "of this text", state)]
        return compare_runs(run, recorded, hold(run, address), allowed, bindings, result.tally)

    alone = [run for c in conversations if c.alone for run in _runs(c, only)]
    others = [run for c in conversations if not c.alone for run in _runs(c, only)]
    for run in alone:
        result.differences += one(run)
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(one, others):
            result.differences += found
    result.runs = len(alone) + len(others)
    result.seconds = time.monotonic() - began
    return result


def _record(conversations: list[Conversation], address: tuple[str, int]) -> int:
    began = time.monotonic()
    failed = 0
    ordered = [c for c in conversations if c.alone] + [c for c in conversations if not c.alone]
    fresh: dict[str, Transcript] = {}
    for one in ordered:
        for run in conversation.runs_of(one):
            transcript = hold(run, address)
            fresh[run.name] = transcript
            for text in (*transcript.broken, *([transcript.stopped] if transcript.stopped else [])):
                failed += 1
                print(f"{one.file}: {run.name}: {text}", file=sys.stderr)
    if failed:
        print(f"{failed} conversations are not what they say; nothing is kept", file=sys.stderr)
        return 1
    for file in dict.fromkeys(c.file for c in conversations):
        kept = recording.read(file) | fresh
        names = [
            run.name for c in conversation.load_all(CONVERSATIONS) if c.file == file for run in conversation.runs_of(c)
        ]
        recording.write(file, [kept[name] for name in names if name in kept])
    exchanges = sum(len(t.outcomes) for t in fresh.values())
    print(f"{len(fresh)} conversations, {exchanges} exchanges recorded in {time.monotonic() - began:.1f} s")
    return 0


def _try(conversations: list[Conversation], address: tuple[str, int], only: str | None) -> int:
    failed = 0
    salt = f"-{time.time_ns() // 1_000_000 % 1_000_000}"
    for one in conversations:
        for run in _runs(one, only):
            transcript = hold(run, address, salt)
            failed += bool(transcript.broken or transcript.stopped)
            print(report.transcript_text(transcript, [s.case for s in one.steps]))
    return 1 if failed else 0


def _show(conversations: list[Conversation], only: str | None) -> int:
    for one in conversations:
        recorded = recording.read(one.file)
        for run in _runs(one, only):
            if run.name in recorded:
                print(report.transcript_text(recorded[run.name], [s.case for s in one.steps]))
    return 0


def _runs(one: Conversation, only: str | None) -> list[Run]:
    """Those that `only` names: each, where it names the conversation."""
    runs = conversation.runs_of(one)
    return [run for run in runs if fnmatch.fnmatchcase(run.name, only)] or runs if only else runs


def _chosen(only: str | None) -> list[Conversation]:
    every = conversation.load_all(CONVERSATIONS)
    if only is None:
        return every
    return [
        c
        for c in every
        if any(fnmatch.fnmatchcase(name, only) for name in (c.file, c.name, *(r.name for r in conversation.runs_of(c))))
    ]


def _rules(self_test: bool) -> rules.Rules:
    every = rules.load()
    return every.of_kind("varies") if self_test else every


@contextlib.contextmanager
def _broker(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    if options.bootstrap:
        host, _, port = options.bootstrap.rpartition(":")
        yield host, int(port)
    elif options.kafka_command:
        with brokers.from_template(options.kafka_command, options.port) as address:
            yield address
    else:
        with brokers.tidelog() as address:
            yield address


def _parser() -> argparse.ArgumentParser:
    settings = "\n    ".join(f"{k}={v}" for k, v in brokers.SETTINGS.items())
    parser = argparse.ArgumentParser(
        prog="conform", description=DESCRIPTION + settings, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--record", action="store_true", help="keep the answers as what is right; only for Kafka")
    what.add_argument("--show", action="store_true", help="print what is recorded")
    what.add_argument("--try", dest="trial", action="store_true", help="hold conversations and print them")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="the broker; without it one is started")
    parser.add_argument(
        "--kafka-command",
        metavar="CMD",
        default=os.environ.get("KAFKA_COMMAND"),
        help="starts a fresh Kafka: {port}, {next_port} and {settings} (--set KEY=VALUE ...) are put in; it prints "
        "host:port when it is ready, and ends at SIGTERM (default: $KAFKA_COMMAND)",
    )
    parser.add_argument("--port", type=int, default=26000, help="for --kafka-command")
    parser.add_argument("--only", metavar="PATTERN", help="conversations, runs or files of that name")
    parser.add_argument("--jobs", type=int, default=4, help="conversations at a time, in a comparison")
    parser.add_argument(
        "--self-test", action="store_true", help="allow only what varies between two runs of Kafka itself"
    )
    return parser
