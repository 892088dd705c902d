"""Parse conversation files. A conversation is a list of requests, in order, on one or more connections.

    conversation NAME
      about TEXT                               what the conversation shows
      versions API [all | N | N- | N-M]        the conversation runs once for each of these versions of the API

      alone                                    it reads the state of the whole broker: it runs before the other
                                               conversations, and no other runs at the same time
      nodes 3                                  it is held with a cluster of three brokers, whose ids are 1 to 3
      setup NAME                               it is held with a broker that has the settings of brokers.SETUPS[NAME]

    case TEXT                                  a name for the steps that follow, for reports
    topic t partitions=2 config={..}           create the topic ${run}-t, wait for its leaders, set $t and $t_id
    topic t replicas=[[2, 1], [3, 1]]          in a cluster: with these replicas, the leader of each partition first
    [CONNECTION:] API[/VERSION] field=value .. send a request and receive its answer. Without /VERSION: in the version
                                               under test, or for another API in its last version. /~: in the version
                                               under test, or in the nearest version that this API has
    [CONNECTION:] send API[/VERSION] ..        send a request; a later `receive` receives its answer
    [CONNECTION:] receive
    [CONNECTION:] silent API[/VERSION] ..      send a request that has no answer
    [CONNECTION:] frame api=N version=N [header=1] [body=hex("..")] [size=N]    send bytes that no schema describes
    [CONNECTION:] close
    kill NODE                                  end a broker's process at once. It is not started again, so the
                                               conversation runs after all others

In a cluster, CONNECTION@NODE: is a connection to one of the brokers. NODE is an id or an expression, like `$leader` or
`other($leader)`. Without it, a connection goes to broker 1.

The lines below a step that are indented continue its fields, or are directives:

      keep NAME = PATH         set a variable for later requests
      until PATH == VALUE      repeat the request until the condition (== or !=) is true; the last answer is compared
      times N                  send the request N times; the last answer is compared
      expect PATH == VALUE     a condition (== or !=); if it is false, a recording fails, and a comparison differs
      only PATH FIELD [VALUE, ..]   compare only these items of a list that also shows other conversations' state
      within A..B              the answer must take between A and B milliseconds
      client NAME              the client id; it may be a text like "${run}-1"
      unanswered               Kafka does not answer this request, by mistake; the runner does not wait long

Example of a PATH: `topics[0].partitions[*].leader_id`. `[*]` means every item, `[name=$t]` the first item with this
field.
"""

import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from . import messages
from .values import BadText, parse_fields, parse_value

# The versions that Kafka 4.3.1 advertises of the APIs that are compared. It also advertises Produce 0-2, but closes the
# connection when it receives them.
ADVERTISED: dict[str, tuple[int, int]] = {
    "Produce": (3, 13),
    "Fetch": (4, 18),
    "ListOffsets": (1, 11),
    "Metadata": (0, 13),
    "OffsetCommit": (2, 10),
    "OffsetFetch": (1, 10),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "DeleteGroups": (0, 2),
    "OffsetDelete": (0, 0),
    "ApiVersions": (0, 4),
    "ConsumerGroupHeartbeat": (0, 1),
    "ConsumerGroupDescribe": (0, 1),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 5),
    "OffsetForLeaderEpoch": (2, 4),
    "AddPartitionsToTxn": (0, 5),
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (0, 5),
    "WriteTxnMarkers": (1, 2),
    "TxnOffsetCommit": (0, 5),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 2),
    "DescribeConfigs": (1, 4),
    "AlterConfigs": (0, 2),
    "CreatePartitions": (0, 3),
    "IncrementalAlterConfigs": (0, 1),
    "AlterReplicaLogDirs": (1, 2),
    "DescribeLogDirs": (1, 5),
    "DescribeClientQuotas": (0, 1),
    "AlterClientQuotas": (0, 1),
    "DescribeQuorum": (0, 2),
    "DescribeCluster": (0, 2),
    "DescribeTopicPartitions": (0, 0),
    "ElectLeaders": (0, 2),
    "AlterPartitionReassignments": (0, 1),
    "ListPartitionReassignments": (0, 0),
    "UnregisterBroker": (0, 0),
    "UpdateFeatures": (0, 2),
    "DescribeProducers": (0, 0),
    "ListConfigResources": (0, 1),
}
VERSION_UNDER_TEST = -1  # written as /~ in a step
DIRECTIVES = ("keep", "until", "times", "expect", "only", "within", "client", "unanswered")
STEP = re.compile(
    r"(?:(?P<connection>[a-z]\w*)(?:@(?P<node>[^\s:]+))?:\s*)?"
    r"(?:(?P<mode>send|silent|receive|close|frame|kill)\b\s*)?(?P<rest>.*)",
    re.DOTALL,
)
CALL = re.compile(r"(?P<api>[A-Z]\w+)(?:/(?P<version>\d+|~))?(?P<fields>\s.*)?", re.DOTALL)
CONDITION = re.compile(r"(\S+) (==|!=) (.+)")
SEGMENT = re.compile(r"\.?(?:(?P<field>\w+)|\[(?P<index>\d+|\*)\]|\[(?P<key>\w+)=(?P<wanted>[^\]]+)\])")


class TreePath(NamedTuple):
    """A path in an answer. Each segment is the name of a field, an index, "*" or (field, expression)."""

    text: str
    segments: tuple[Any, ...]


class Condition(NamedTuple):
    path: TreePath
    equal: bool
    value: Any  # an expression


class Selection(NamedTuple):
    """The directive `only`: the items of the list at `path` whose `field` is one of `values`."""

    path: TreePath
    field: str
    values: Any  # an expression: a list


class Step(NamedTuple):
    line: int
    case: str
    connection: str
    mode: str  # call, send, receive, silent, frame, close, kill
    api: str | None
    version: int | None
    fields: dict[str, Any]
    keep: tuple[tuple[str, TreePath], ...] = ()
    until: tuple[Condition, ...] = ()
    expect: tuple[Condition, ...] = ()
    only: tuple[Selection, ...] = ()
    within_ms: tuple[int, int] | None = None
    client_id: Any = "conform"  # a text or an expression
    unanswered: bool = False
    times: int = 1
    node: Any = 1  # the id of the broker that a new connection goes to, or an expression

    @property
    def is_described(self) -> bool:
        """Whether a schema describes the request."""
        return self.mode != "frame"


class Conversation(NamedTuple):
    file: str
    name: str
    about: str
    api: str | None  # the API whose versions are under test
    versions: tuple[int, ...]
    alone: bool  # whether it runs before the other conversations, while no other runs
    nodes: int  # number of brokers
    setup: str  # the settings of the broker, a key of brokers.SETUPS; empty for the usual settings
    steps: tuple[Step, ...]
    digest: str  # of the conversation's text: a recording with another digest is not used

    @property
    def kills(self) -> bool:
        """Whether a broker is dead afterwards, so that no other conversation can follow."""
        return any(step.mode == "kill" for step in self.steps)


class Run(NamedTuple):
    """A conversation with one version of the API under test."""

    conversation: Conversation
    version: int | None

    @property
    def name(self) -> str:
        return self.conversation.name if self.version is None else f"{self.conversation.name}-v{self.version}"

    def version_of(self, step: Step) -> int:
        assert step.api is not None
        if step.version == VERSION_UNDER_TEST:
            assert self.version is not None
            first, last = ADVERTISED[step.api]
            return min(max(self.version, first), last)
        if step.version is not None:
            return step.version
        if step.api == self.conversation.api:
            assert self.version is not None
            return self.version
        return ADVERTISED[step.api][1]


def load_all(directory: Path) -> list[Conversation]:
    """Return every conversation of a directory, in the order of file names and lines. Raises BadText."""
    conversations: list[Conversation] = []
    for file in sorted(directory.glob("*.txt")):
        conversations += parse(file.stem, file.read_text())
    names = [c.name for c in conversations]
    for name in names:
        if names.count(name) > 1:
            raise BadText(f"two conversations are named {name}")
    return conversations


def runs_of(conversation: Conversation) -> list[Run]:
    return [Run(conversation, v) for v in conversation.versions] or [Run(conversation, None)]


def parse(file: str, text: str) -> list[Conversation]:
    """Parse the text of one file. Raises BadText with file and line."""
    blocks: list[list[tuple[int, str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.rstrip()
        if not line or line.lstrip().startswith("#"):
            continue
        if line.startswith("conversation "):
            blocks.append([])
        if not blocks:
            raise BadText(f"{file}:{number}: the line is before the first `conversation NAME`")
        blocks[-1].append((number, line))
    return [_conversation(file, block) for block in blocks]


def _conversation(file: str, lines: list[tuple[int, str]]) -> Conversation:
    name = lines[0][1].split(maxsplit=1)[1]
    about, alone, nodes, setup = "", False, 1, ""
    api: str | None = None
    versions: tuple[int, ...] = ()
    body = 1
    while body < len(lines) and lines[body][1].startswith((" ", "\t")):
        number, line = lines[body]
        word, _, rest = line.strip().partition(" ")
        if word == "about":
            about = f"{about} {rest}".strip()
        elif word == "versions":
            api, versions = _versions(f"{file}:{number}", rest)
        elif word == "alone":
            alone = True
        elif word == "nodes":
            nodes = int(rest)
        elif word == "setup":
            setup = rest
        else:
            raise BadText(f"{file}:{number}: expected about, versions, alone, nodes or setup, not {word}")
        body += 1
    steps: list[Step] = []
    case = ""
    for number, group in _groups(lines[body:]):
        if group[0].startswith("case "):
            case = group[0][5:]
            continue
        try:
            steps += _steps(number, case, group)
        except (BadText, ValueError) as error:
            raise BadText(f"{file}:{number}: {error}") from error
    digest = hashlib.sha256("\n".join(line for _, line in lines).encode()).hexdigest()[:16]
    return Conversation(file, name, about, api, versions, alone, nodes, setup, tuple(steps), digest)


def _versions(where: str, text: str) -> tuple[str, tuple[int, ...]]:
    api, _, span = text.partition(" ")
    if api not in ADVERTISED:
        raise BadText(f"{where}: {api} is not compared")
    first, last = ADVERTISED[api]
    if span in ("", "all"):
        return api, tuple(range(first, last + 1))
    low, dash, high = span.partition("-")
    versions = range(int(low), (int(high) if high else last) + 1) if dash else range(int(low), int(low) + 1)
    if versions.start < first or versions.stop > last + 1 or not versions:
        raise BadText(f"{where}: {api} has versions {first}-{last}")
    return api, tuple(versions)


def _groups(lines: list[tuple[int, str]]) -> list[tuple[int, list[str]]]:
    """Return each line without indentation, with the indented lines below it."""
    groups: list[tuple[int, list[str]]] = []
    for number, line in lines:
        if line.startswith((" ", "\t")):
            groups[-1][1].append(line.strip())
        else:
            groups.append((number, [line]))
    return groups


def _steps(number: int, case: str, group: list[str]) -> list[Step]:
    directives: list[tuple[str, str]] = []
    body = group[0]
    for line in group[1:]:
        word, _, rest = line.partition(" ")
        if word in DIRECTIVES:
            directives.append((word, rest.strip()))
        else:
            body += " " + line
    if body.startswith("topic "):
        if directives:
            raise BadText("a topic has no directives")
        return _topic(number, case, body)
    match = STEP.fullmatch(body)
    assert match is not None
    connection, mode, rest = match["connection"] or "a", match["mode"] or "call", match["rest"].strip()
    node = 1 if match["node"] is None else parse_value(match["node"])
    if mode == "kill":
        step = Step(number, case, connection, mode, None, None, {}, node=parse_value(rest))
    elif mode in ("receive", "close"):
        if rest:
            raise BadText(f"{mode} has no fields: {rest}")
        step = Step(number, case, connection, mode, None, None, {})
    elif mode == "frame":
        step = Step(number, case, connection, mode, None, None, parse_fields(rest), node=node)
    else:
        call = CALL.fullmatch(rest)
        if call is None or call["api"] not in messages.API_KEYS:
            raise BadText(f"not a step: {body[:60]!r}")
        version = (
            None if call["version"] is None else VERSION_UNDER_TEST if call["version"] == "~" else int(call["version"])
        )
        step = Step(number, case, connection, mode, call["api"], version, parse_fields(call["fields"] or ""), node=node)
    return [_with_directives(step, directives)]


def _with_directives(step: Step, directives: list[tuple[str, str]]) -> Step:
    keep: list[tuple[str, TreePath]] = []
    conditions: dict[str, list[Condition]] = {"until": [], "expect": []}
    only: list[Selection] = []
    changes: dict[str, Any] = {}
    for word, rest in directives:
        if word == "keep":
            name, _, path = rest.partition("=")
            keep.append((name.strip(), parse_path(path.strip())))
        elif word in conditions:
            match = CONDITION.fullmatch(rest)
            if match is None:
                raise BadText(f"expected {word} PATH == VALUE, not {rest!r}")
            conditions[word].append(Condition(parse_path(match[1]), match[2] == "==", parse_value(match[3])))
        elif word == "only":
            path, field, values = rest.split(maxsplit=2)
            only.append(Selection(parse_path(path), field, parse_value(values)))
        elif word == "within":
            low, _, high = rest.partition("..")
            changes["within_ms"] = (int(low), int(high))
        elif word == "times":
            changes["times"] = int(rest)
        elif word == "unanswered":
            changes["unanswered"] = True
        else:
            changes["client_id"] = parse_value(rest) if rest.startswith('"') else rest
    return step._replace(
        keep=tuple(keep),
        until=tuple(conditions["until"]),
        expect=tuple(conditions["expect"]),
        only=tuple(only),
        **changes,
    )


def _topic(number: int, case: str, body: str) -> list[Step]:
    """Return the steps for `topic`: CreateTopics, then ListOffsets until each partition has a leader.

    Kafka answers CreateTopics before the partitions have leaders. In a cluster, wait also until every broker knows
    the leaders.
    """
    words = body.split(maxsplit=2)
    name = words[1]
    options = parse_fields(words[2]) if len(words) > 2 else {}
    replicas = options.pop("replicas", [])
    partitions = options.pop("partitions", len(replicas) or 1)
    config = options.pop("config", {})
    if options:
        raise BadText(f"a topic has only partitions, replicas and config, not {', '.join(options)}")
    settings = ", ".join(f'{{name="{k}", value="{v if isinstance(v, int) else v.text}"}}' for k, v in config.items())
    if replicas:
        assignments = ", ".join(f"{{partition_index={i}, broker_ids={ids}}}" for i, ids in enumerate(replicas))
        counts = f"num_partitions=-1, replication_factor=-1, assignments=[{assignments}]"
    else:
        counts = f"num_partitions={partitions}, replication_factor=1"
    create = f'CreateTopics/7 timeout_ms=30000 topics=[{{name="${{run}}-{name}", {counts}, configs=[{settings}]}}]'
    return [
        *_steps(
            number,
            case,
            [
                create,
                "expect topics[0].error_code == 0",
                f"keep {name} = topics[0].name",
                f"keep {name}_id = topics[0].topic_id",
            ],
        ),
        *_wait_for_leaders(number, case, name, [ids[0] for ids in replicas] or [1] * partitions),
        *(_wait_for_knowledge(number, case, name, node) for node in range(1, 4) if replicas),
    ]


def _wait_for_leaders(number: int, case: str, name: str, leaders: list[int]) -> list[Step]:
    """Return the steps that wait until the leader of each partition leads it."""
    steps = []
    for leader in dict.fromkeys(leaders):
        indexes = ", ".join(f"{{partition_index={i}, timestamp=-1}}" for i, id in enumerate(leaders) if id == leader)
        wait = f'ListOffsets/7 replica_id=-1 topics=[{{name="${{run}}-{name}", partitions=[{indexes}]}}]'
        connection = "" if leader == 1 else f"leader{leader}@{leader}: "
        steps += _steps(number, case, [connection + wait, "until topics[0].partitions[*].error_code == 0"])
    return steps


def _wait_for_knowledge(number: int, case: str, name: str, node: int) -> Step:
    """Return the step that waits until one broker knows the leaders of a topic's partitions."""
    wait = f'leader{node}@{node}: Metadata/12 topics=[{{name="${{run}}-{name}"}}] allow_auto_topic_creation=false'
    (step,) = _steps(number, case, [wait, "until topics[0].partitions[*].error_code == 0"])
    return step


def parse_path(text: str) -> TreePath:
    segments: list[Any] = []
    position = 0
    while position < len(text):
        match = SEGMENT.match(text, position)
        if match is None:
            raise BadText(f"not a path: {text!r}")
        if match["field"]:
            segments.append(match["field"])
        elif match["index"]:
            segments.append("*" if match["index"] == "*" else int(match["index"]))
        else:
            segments.append((match["key"], parse_value(match["wanted"])))
        position = match.end()
    return TreePath(text, tuple(segments))
