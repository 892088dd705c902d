"""Commands of Kafka's command-line tools, in scenes that run in order, and the table of all commands.

tests/interop/test_kafka_tools.py runs them with either broker; docs/kafka-tools.md shows the table.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tidelog.api.registry import TABLE
from tidelog.wire.apis import APIS

NOT_SERVED = r"UnsupportedVersion|does not support|UNSUPPORTED_VERSION"
"""The tools' messages for an API that the broker does not offer."""


class Command(NamedTuple):
    """One call of a tool. `line` holds {topic}, {group}, {broker}, {name} and {files}."""

    tool: str
    line: str
    shows: str = ""
    """A regular expression that matches its output if it works."""
    code: int = 0
    input: bytes = b""
    settles: bool = False
    """Whether the command is repeated until its output matches `shows`: Kafka reports a change only after a moment."""
    needs: tuple[int, ...] = ()
    """The APIs without which the command is refused."""
    refusal: str = NOT_SERVED
    refusal_code: int = 1
    otherwise: str = ""
    """The output with Tidelog, if it differs from Kafka on purpose. The exit code is then `refusal_code`."""
    why: str = ""
    """Why Tidelog differs."""
    shown: str = ""
    """The command line for the table, if `line` has irrelevant parts."""


def bare(tool: str) -> bool:
    """Return whether the tool expects the broker's address after a subcommand."""
    return tool == "cluster"


def missing(command: Command, served: Iterable[int] = TABLE) -> list[int]:
    """Return the APIs that the command needs and that are not served."""
    known = set(served)
    return [key for key in command.needs if key not in known]


SCENES: dict[str, list[Command]] = {
    "topics": [
        Command(
            "topics", "--create --topic {name} --partitions 2 --config retention.ms=86400000", "Created topic {name}"
        ),
        Command("topics", "--list", r"(?m)^{name}$", settles=True),
        Command("topics", "--describe --topic {name}", "PartitionCount: 2.*retention.ms=86400000", settles=True),
        Command("topics", "--alter --topic {name} --partitions 3"),
        Command("topics", "--describe --topic {name}", "PartitionCount: 3", settles=True),
        Command("topics", "--describe --under-replicated-partitions"),
        Command("topics", "--describe --unavailable-partitions"),
        Command("topics", "--describe --under-min-isr-partitions"),
        Command(
            "topics", "--create --topic {name}", "already exists", code=1, shown="--create, of a topic that exists"
        ),
        Command("topics", "--delete --topic {name}"),
    ],
    "topic-configs": [
        Command(
            "configs", "--entity-type topics --entity-name {topic} --alter --add-config cleanup.policy=[compact,delete]"
        ),
        Command(
            "configs",
            "--entity-type topics --entity-name {topic} --describe",
            "cleanup.policy=compact,delete",
            settles=True,
        ),
        Command(
            "configs", "--entity-type topics --entity-name {topic} --describe --all", "TOPIC_CONFIG:cleanup.policy"
        ),
        Command("configs", "--entity-type topics --entity-name {topic} --alter --delete-config cleanup.policy"),
        Command("configs", "--entity-type topics --describe", "Dynamic configs for topic {topic}"),
        Command(
            "configs",
            "--entity-type topics --entity-name {topic} --alter --add-config retention.ms=soon",
            "Not a number",
            code=1,
            shown="--alter, with a value that is not a number",
        ),
    ],
    "broker-configs": [
        Command("configs", "--entity-type brokers --entity-name {broker} --alter --add-config log.roll.ms=86400000"),
        Command(
            "configs", "--entity-type brokers --entity-name {broker} --describe", "log.roll.ms=86400000", settles=True
        ),
        Command("configs", "--entity-type brokers --entity-default --alter --add-config log.roll.ms=96400000"),
        Command("configs", "--entity-type brokers --entity-default --describe", "log.roll.ms=96400000", settles=True),
        Command(
            "configs",
            "--entity-type brokers --entity-name {broker} --describe --all",
            "DYNAMIC_BROKER_CONFIG:log.roll.ms=86400000, DYNAMIC_DEFAULT_BROKER_CONFIG:log.roll.ms=96400000",
            settles=True,
        ),
        Command("configs", "--entity-type brokers --entity-name {broker} --alter --delete-config log.roll.ms"),
        Command("configs", "--entity-type brokers --entity-default --alter --delete-config log.roll.ms"),
        Command("configs", "--entity-type brokers --describe", "Dynamic configs for broker {broker}"),
        Command(
            "configs",
            "--entity-type brokers --entity-name {broker} --alter --add-config num.partitions=3",
            "InvalidRequestException",
            code=1,
            shown="--alter of a broker, a setting that is only read at the start",
        ),
    ],
    "broker-loggers": [
        Command("configs", "--entity-type broker-loggers --entity-name {broker} --describe", "root=[A-Z]+"),
        Command("configs", "--entity-type broker-loggers --entity-name {broker} --alter --add-config root=ERROR"),
        Command(
            "configs", "--entity-type broker-loggers --entity-name {broker} --describe", "root=ERROR", settles=True
        ),
        Command("configs", "--entity-type broker-loggers --entity-name {broker} --alter --add-config root=WARN"),
        Command(
            "configs",
            "--entity-type broker-loggers --entity-name {broker} --alter --add-config no.such=WARN",
            "Invalid broker logger",
            code=1,
            shown="--alter, of a logger that does not exist",
        ),
    ],
    "group-configs": [
        Command(
            "configs",
            "--entity-type groups --entity-name {name} --alter --add-config consumer.session.timeout.ms=50000",
        ),
        Command("configs", "--entity-type groups --entity-name {name} --describe", "timeout.ms=50000", settles=True),
        Command("configs", "--entity-type groups --describe", "configs for group {name}", settles=True),
        Command(
            "configs", "--entity-type groups --entity-name {name} --alter --delete-config consumer.session.timeout.ms"
        ),
    ],
    "client-metrics-configs": [
        Command("configs", "--entity-type client-metrics --entity-name {name} --alter --add-config interval.ms=60000"),
        Command(
            "configs", "--entity-type client-metrics --entity-name {name} --describe", "interval.ms=60000", settles=True
        ),
        Command("configs", "--entity-type client-metrics --describe", "client-metric {name}", settles=True),
        Command("configs", "--entity-type client-metrics --entity-name {name} --alter --delete-config interval.ms"),
    ],
    "client-metrics": [
        Command(
            "client-metrics", "--alter --name {name} --metrics org.apache.kafka. --interval 60000 --match client_id=app"
        ),
        Command("client-metrics", "--list", "{name}", settles=True),
        Command("client-metrics", "--describe --name {name}", "match=client_id=app", settles=True),
        Command("client-metrics", "--delete --name {name}", "Deleted"),
    ],
    "quotas": [
        Command(
            "configs",
            "--entity-type clients --entity-name {name} --alter --add-config producer_byte_rate=1000000",
            needs=(48, 49),
        ),
        Command("configs", "--entity-type clients --describe", needs=(48,)),
        Command("configs", "--entity-type users --describe", needs=(48, 50)),
        Command("configs", "--entity-type ips --describe", needs=(48,)),
    ],
    "console": [
        Command("console-producer", "--topic {topic}", input=b"one\ntwo\n"),
        Command("console-consumer", "--topic {topic} --from-beginning --max-messages 2", "one\ntwo"),
        Command("console-consumer", "--topic {topic} --partition 0 --offset 1 --max-messages 1", "^two"),
        Command("get-offsets", "--topic {topic}", "{topic}:0:2"),
        Command("get-offsets", "--topic {topic} --time earliest", "{topic}:0:0"),
        Command("delete-records", "--offset-json-file {files}/delete.json", "low_watermark: 1"),
        Command("get-offsets", "--topic {topic} --time earliest", "{topic}:0:1"),
        Command("log-dirs", "--describe --topic-list {topic}", '"partition":"{topic}-0"'),
        Command("log-dirs", "--describe --broker-list {broker}", '"broker":{broker}'),
    ],
    "verifiable": [
        Command("verifiable-producer", "--topic {topic} --max-messages 50 --acks -1", '"acked":50'),
        Command(
            "verifiable-consumer",
            "--topic {topic} --group-id {name} --max-messages 50 --reset-policy earliest",
            "records_consumed",
        ),
        Command(
            "producer-perf-test", "--topic {topic} --num-records 50 --record-size 10 --throughput -1", "50 records sent"
        ),
        Command("consumer-perf-test", "--topic {topic} --num-records 100 --timeout 30000", ", 100, "),
        Command("e2e-latency", "--topic {topic} --num-records 10 --producer-acks all --record-size 20", "Avg latency"),
    ],
    "consumer-groups": [
        Command("console-producer", "--topic {topic}", input=b"one\ntwo\n"),
        Command("console-consumer", "--topic {topic} --group {group} --from-beginning --max-messages 2", "one\ntwo"),
        Command("consumer-groups", "--list", "{group}"),
        Command("consumer-groups", "--list --state", "{group} +Empty", settles=True),
        Command("consumer-groups", "--list --type classic", "{group} +Classic"),
        Command("consumer-groups", "--describe --group {group}", r"{group} +{topic} +0 +2 +2 +0"),
        Command("consumer-groups", "--describe --group {group} --state", "{group} .*Empty"),
        Command("consumer-groups", "--describe --group {group} --members --verbose", "no active members"),
        Command("consumer-groups", "--describe --all-groups", "{group}"),
        Command(
            "consumer-groups",
            "--group {group} --topic {topic} --reset-offsets --to-earliest --dry-run",
            "{topic} +0 +0",
        ),
        Command(
            "consumer-groups",
            "--group {group} --topic {topic} --reset-offsets --to-offset 1 --execute",
            "{topic} +0 +1",
        ),
        Command(
            "consumer-groups",
            "--group {group} --all-topics --reset-offsets --by-duration PT1H --export",
            "{topic},0,0",
        ),
        Command("groups", "--list", "{group} +Classic"),
        Command(
            "consumer-groups",
            "--delete-offsets --group {group} --topic {topic}",
            "Successful",
            needs=(47,),
            refusal_code=0,
        ),
        Command("consumer-groups", "--delete --group {group}", "was successful", needs=(42,), refusal_code=0),
    ],
    "cluster": [
        Command("broker-api-versions", "", r"ApiVersions\(18\): 0 to 4 \[usable: 4\]"),
        Command("cluster", "cluster-id", "Cluster ID: [A-Za-z0-9_-]{22}"),
        Command("cluster", "list-endpoints", "{broker} +127.0.0.1 .*unfenced +broker"),
        Command(
            "cluster",
            "unregister --id 9",
            "not registered|BrokerIdNotRegistered",
            code=1,
            needs=(64,),
            refusal="does not support the broker unregistration API",
            refusal_code=0,
        ),
        Command("features", "describe", r"group\.version\s.*FinalizedVersionLevel: 1"),
        Command("features", "upgrade --feature group.version=1", "upgraded to 1"),
        Command(
            "features",
            "downgrade --feature group.version=0 --dry-run",
            "can be downgraded",
            otherwise="remains at level 1",
            why="levels follow from the software and its settings",
        ),
        Command(
            "features", "upgrade --feature no.such.feature=1", "not recognized|not support|no feature|not found", code=1
        ),
        Command("features", "version-mapping", r"group\.version=1"),
        Command("metadata-quorum", "describe --status", "LeaderId", needs=(55,)),
        Command("metadata-quorum", "describe --replication", "NodeId", needs=(55,)),
    ],
    "partitions": [
        Command(
            "leader-election",
            "--election-type preferred --topic {topic} --partition 0",
            "needed|Valid replica",
            needs=(43,),
        ),
        Command("reassign-partitions", "--list", "No partition reassignments found"),
        Command(
            "reassign-partitions",
            "--generate --broker-list {broker} --topics-to-move-json-file {files}/topics.json",
            "Proposed partition reassignment",
        ),
        Command(
            "reassign-partitions",
            "--execute --reassignment-json-file {files}/move.json",
            "Successfully started",
            needs=(45,),
        ),
        Command(
            "reassign-partitions",
            "--execute --reassignment-json-file {files}/move.json --throttle 1000000",
            "throttle limit was set to 1000000",
            needs=(45,),
        ),
        Command(
            "reassign-partitions",
            "--verify --reassignment-json-file {files}/move.json",
            "(?s)is completed.*Clearing topic-level throttles",
            needs=(45,),
        ),
        Command("leader-election", "--election-type unclean --all-topic-partitions", needs=(43,)),
    ],
    "transactions": [
        Command("producer-perf-test", "--topic {topic} --num-records 50 --record-size 10 --throughput -1"),
        Command("transactions", "describe-producers --topic {topic} --partition 0", r"(?m)^\d+\s+0\s+-1\s+49\s"),
        Command("transactions", "find-hanging --broker-id {broker}", "ProducerId"),
        Command("transactions", "list", "TransactionalId", needs=(66,)),
        Command(
            "producer-perf-test",
            "--topic {topic} --num-records 50 --record-size 10 --throughput -1 "
            "--transactional-id {name} --transaction-duration-ms 60000",
        ),
        Command("transactions", "describe --transactional-id {name}", "CompleteCommit", settles=True, needs=(65,)),
        Command("transactions", "forceTerminateTransaction --transactionalId {name}", needs=(22,)),
        Command(
            "transactions",
            "abort --topic {topic} --partition 0 --producer-id 999999 --producer-epoch 0 --coordinator-epoch 0",
            needs=(27,),
        ),
        Command(
            "transactions",
            "abort --topic {topic} --partition 0 --start-offset 0",
            "Could not find any open transactions",
            code=1,
            shown="abort, of a transaction that is not open",
        ),
    ],
    "others": [
        Command("acls", "--list", "", needs=(29,), code=1, shown="--list"),
        Command("groups", "--list --share", "GROUP|^$"),
        Command("share-groups", "--list"),
        Command("streams-groups", "--list"),
        Command(
            "share-groups",
            "--describe --group {name}",
            "not found|GroupIdNotFound|does not exist",
            needs=(77,),
            refusal_code=0,
        ),
    ],
}


def table() -> str:
    """Return a Markdown table with every command once and its result."""
    lines = ["| tool | command | |", "| --- | --- | --- |"]
    seen: set[tuple[str, str]] = set()
    for command in (each for scene in SCENES.values() for each in scene):
        text = command.shown or _readable(command.line)
        if (command.tool, text) in seen:
            continue
        seen.add((command.tool, text))
        lines.append(
            f"| kafka-{command.tool} | {f'`{text}`' if text and not command.shown else text} | {_outcome(command)} |"
        )
    return "\n".join(lines) + "\n"


def _readable(line: str) -> str:
    for name, word in (("topic", "T"), ("group", "G"), ("broker", "N"), ("name", "X"), ("files", "DIR")):
        line = line.replace(f"{{{name}}}", word)
    return line


def _outcome(command: Command) -> str:
    lacking = missing(command)
    if lacking:
        return f"not yet: {', '.join(f'{APIS[key].name} ({key})' for key in lacking)}"
    if command.otherwise:
        return f"refused: {command.why}"
    return "works" if command.code == 0 else "refused, as by Kafka"
