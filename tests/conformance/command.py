"""The command `script/conform`. It records Kafka's answers, compares a broker with them, or prints them."""

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
from .brokers import Cluster
from .compare import Bindings, Difference, Tally, compare_runs
from .conversation import Conversation, Run
from .exchange import Transcript, run_conversation

CONVERSATIONS = Path(__file__).parent / "conversations"
DESCRIPTION = """Record the answers of Apache Kafka 4.3.1, or compare a broker with the recording.

  conform                                  start Tidelog and compare it with the recording
  conform --bootstrap HOST:PORT            compare the broker at this address with the recording
  conform --cluster                        the conversations with three brokers, instead of those with one
  conform --setup NAME                     the conversations with a broker that has other settings
  conform --record --bootstrap HOST:PORT   record the Kafka at this address
  conform --record --kafka-command CMD     start Kafka, record it, stop it
  conform --show [--only PATTERN]          print the recording, decoded
  conform --try --bootstrap HOST:PORT      run conversations and print them; nothing is compared or stored

A broker that is recorded or compared must start with an empty data directory and these settings:
    """


class Result:
    """The result of a comparison."""

    def __init__(self) -> None:
        self.runs = 0
        self.tally = Tally()
        self.differences: list[Difference] = []
        self.seconds = 0.0


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    conversations = _select_conversations(options.only, options.cluster, options.setup)
    if options.show:
        return _show(conversations, options.only)
    allowed = _rules(options.self_test, options.cluster)
    with _brokers(options) as cluster:
        if options.record:
            return _record(conversations, cluster)
        if options.trial:
            return _try(conversations, cluster, options.only)
        result = compare(conversations, cluster, allowed, options.jobs, options.only)
    print(report.differences_text(result.differences))
    print(report.summary_text(result.runs, result.tally, len(result.differences), result.seconds))
    of_cluster = [c.name for c in conversations] if options.cluster else []
    is_complete = not options.only and (options.cluster or not options.setup)
    unused = report.unused(allowed, result.tally, of_cluster=of_cluster) if is_complete else []
    for rule in unused:
        print(f"the rule is not needed: {rule}")
    return 1 if result.differences or unused else 0


def compare(
    conversations: list[Conversation],
    cluster: Cluster,
    allowed: rules.Rules,
    jobs: int = 4,
    only: str | None = None,
) -> Result:
    """Run the conversations with the brokers, and compare each run with its recording."""
    began = time.monotonic()
    result = Result()
    bindings = Bindings()
    recordings = {file: recording.read(file) for file in dict.fromkeys(c.file for c in conversations)}

    def compare_run(run: Run) -> list[Difference]:
        recorded = recordings[run.conversation.file].get(run.name)
        if recorded is None or recorded.digest != run.conversation.digest:
            state = "not recorded" if recorded is None else "recorded from another text"
            return [Difference(run.name, "", 0, "-", -1, "@recording", "recorded from this text", state)]
        ours = run_conversation(run, *cluster.addresses, kill=cluster.kill)
        return compare_runs(run, recorded, ours, allowed, bindings, result.tally)

    alone = [run for c in conversations if c.alone for run in _runs(c, only)]
    others = [run for c in conversations if not (c.alone or c.kills) for run in _runs(c, only)]
    last = [run for c in conversations if c.kills for run in _runs(c, only)]
    for run in alone:
        result.differences += compare_run(run)
    with ThreadPoolExecutor(jobs) as pool:
        for differences in pool.map(compare_run, others):
            result.differences += differences
    for run in last:
        result.differences += compare_run(run)
    result.runs = len(alone) + len(others) + len(last)
    result.seconds = time.monotonic() - began
    return result


def _record(conversations: list[Conversation], cluster: Cluster) -> int:
    began = time.monotonic()
    failed = 0
    ordered = sorted(conversations, key=lambda c: (c.kills, not c.alone))
    new_transcripts: dict[str, Transcript] = {}
    for one in ordered:
        for run in conversation.runs_of(one):
            transcript = run_conversation(run, *cluster.addresses, kill=cluster.kill)
            new_transcripts[run.name] = transcript
            for text in (*transcript.failed_conditions, *([transcript.stop_reason] if transcript.stop_reason else [])):
                failed += 1
                print(f"{one.file}: {run.name}: {text}", file=sys.stderr)
    if failed:
        print(f"{failed} conditions of conversations failed; nothing is recorded", file=sys.stderr)
        return 1
    for file in dict.fromkeys(c.file for c in conversations):
        transcripts = recording.read(file) | new_transcripts
        names = [
            run.name for c in conversation.load_all(CONVERSATIONS) if c.file == file for run in conversation.runs_of(c)
        ]
        recording.write(file, [transcripts[name] for name in names if name in transcripts])
    exchanges = sum(len(t.outcomes) for t in new_transcripts.values())
    print(f"{len(new_transcripts)} conversations, {exchanges} exchanges recorded in {time.monotonic() - began:.1f} s")
    return 0


def _try(conversations: list[Conversation], cluster: Cluster, only: str | None) -> int:
    failed = 0
    salt = f"-{time.time_ns() // 1_000_000 % 1_000_000}"
    for one in conversations:
        for run in _runs(one, only):
            transcript = run_conversation(run, *cluster.addresses, kill=cluster.kill, salt=salt)
            failed += bool(transcript.failed_conditions or transcript.stop_reason)
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
    """Return the runs whose name matches `only`. If none matches, `only` names the conversation: return all runs."""
    runs = conversation.runs_of(one)
    return [run for run in runs if fnmatch.fnmatchcase(run.name, only)] or runs if only else runs


def of_nodes(nodes: int, setup: str = "") -> list[Conversation]:
    """Return the conversations that are held with a cluster of this size, or with a broker of this setup."""
    return [c for c in conversation.load_all(CONVERSATIONS) if c.nodes == nodes and c.setup == setup]


def _select_conversations(only: str | None, is_cluster: bool, setup: str) -> list[Conversation]:
    all_conversations = of_nodes(brokers.NODES if is_cluster else 1, setup)
    if only is None:
        return all_conversations
    return [
        c
        for c in all_conversations
        if any(fnmatch.fnmatchcase(name, only) for name in (c.file, c.name, *(r.name for r in conversation.runs_of(c))))
    ]


def _rules(self_test: bool, is_cluster: bool) -> rules.Rules:
    all_rules = rules.load_for_cluster() if is_cluster else rules.load()
    return all_rules.of_kind("varies") if self_test else all_rules


@contextlib.contextmanager
def _brokers(options: argparse.Namespace) -> Iterator[Cluster]:
    if options.bootstrap:
        pairs = [address.rpartition(":") for address in options.bootstrap.split(",")]
        yield Cluster(tuple((host, int(port)) for host, _, port in pairs))
    elif options.kafka_command:
        with brokers.from_template(
            options.kafka_command, options.port, is_cluster=options.cluster, setup=options.setup
        ) as cluster:
            yield cluster
    elif options.cluster:
        with brokers.tidelog_cluster(options.setup) as cluster:
            yield cluster
    else:
        with brokers.tidelog(setup=options.setup) as address:
            yield Cluster((address,))


def _parser() -> argparse.ArgumentParser:
    settings = "\n    ".join(f"{k}={v}" for k, v in brokers.SETTINGS.items())
    parser = argparse.ArgumentParser(
        prog="conform", description=DESCRIPTION + settings, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--record", action="store_true", help="store the answers as the recording; only for Kafka")
    mode.add_argument("--show", action="store_true", help="print the recording")
    mode.add_argument("--try", dest="trial", action="store_true", help="run conversations and print them")
    parser.add_argument(
        "--cluster", action="store_true", help="the conversations with three brokers, whose ids are 1 to 3"
    )
    parser.add_argument(
        "--setup",
        choices=sorted(brokers.SETUPS),
        default="",
        help="the conversations with a broker that has the settings of this setup, in addition to those below",
    )
    parser.add_argument(
        "--bootstrap", metavar="HOST:PORT[,..]", help="the addresses of the brokers (default: start brokers)"
    )
    parser.add_argument(
        "--kafka-command",
        metavar="CMD",
        default=os.environ.get("KAFKA_COMMAND"),
        help="the command that starts Kafka with an empty data directory. {port}, {next_port} and {settings} (--set "
        "KEY=VALUE ...) in it are replaced. It must print host:port of each broker when Kafka is ready, and end at "
        "SIGTERM (default: $KAFKA_COMMAND)",
    )
    parser.add_argument("--port", type=int, default=26000, help="the port for --kafka-command (26000)")
    parser.add_argument("--only", metavar="PATTERN", help="only conversations, runs or files with this name")
    parser.add_argument(
        "--jobs", type=int, default=4, help="number of conversations that a comparison runs at a time (4)"
    )
    parser.add_argument(
        "--self-test", action="store_true", help="allow only differences that also vary between two runs of Kafka"
    )
    return parser
