"""The parser of conversation files, and a check of all conversation files."""

import importlib
import re
from pathlib import Path

import pytest

from tidelog.api.registry import TABLE
from tidelog.wire.apis import APIS

from .builders import BUILDERS
from .command import CONVERSATIONS
from .conversation import ADVERTISED, load_all, parse, parse_path, runs_of
from .values import BadText, Name, Text, evaluate

TEXT = """
# a comment
conversation one
  about Two lines
  about of it.
  versions Metadata 3-4

topic t partitions=2 config={"retention.ms"=5}
case first
b: Metadata topics=[{name=$t}]
    allow_auto_topic_creation=false
  keep id = topics[0].topic_id
  expect topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
  until topics[*].name != nothing
  only topics name [$t]
  within 10..20
  client somebody
send Heartbeat/~ group_id=g
receive
frame api=99 version=0 body=hex("00")
conversation two
  alone
ApiVersions/0
"""


CLUSTER_TEXT = """
conversation one
  nodes 3
topic t replicas=[[2, 1], [1, 3], [2, 3]]
b@3: Heartbeat/0 group_id=g
  keep c = error_code
w@other($c): Heartbeat/0 group_id=g
kill 3
"""


def test_reads_conversations_with_a_cluster() -> None:
    (one,) = parse("file", CLUSTER_TEXT)
    assert (one.nodes, one.kills) == (3, True)
    create, *waits, third, other, kill = one.steps
    assert [a["broker_ids"] for a in create.fields["topics"][0]["assignments"]] == [[2, 1], [1, 3], [2, 3]]
    assert [(step.api, step.connection, step.node) for step in waits] == [
        ("ListOffsets", "leader2", 2),
        ("ListOffsets", "a", 1),
        *(("Metadata", f"leader{node}", node) for node in (1, 2, 3)),
    ]
    assert [p["partition_index"] for p in waits[0].fields["topics"][0]["partitions"]] == [0, 2]
    assert third.node == 3
    assert evaluate(other.node, {"c": 3}, BUILDERS) == 1
    assert (kill.mode, kill.node) == ("kill", 3)


def test_reads_what_the_format_says() -> None:
    one, two = parse("file", TEXT)
    assert (one.name, one.about, one.api, one.versions, one.alone) == (
        "one",
        "Two lines of it.",
        "Metadata",
        (3, 4),
        False,
    )
    create, wait, call, send, receive, frame = one.steps
    assert create.api == "CreateTopics"
    assert [c.path.text for c in wait.until] == ["topics[0].partitions[*].error_code"]
    assert (call.connection, call.case, call.mode, call.client_id, call.within_ms) == (
        "b",
        "first",
        "call",
        "somebody",
        (10, 20),
    )
    assert call.fields == {"topics": [{"name": Name("t")}], "allow_auto_topic_creation": False}
    assert [(name, path.segments) for name, path in call.keep] == [("id", ("topics", 0, "topic_id"))]
    assert [c.equal for c in (*call.expect, *call.until)] == [True, False]
    assert call.only[0].field == "name"
    assert (send.mode, receive.mode, frame.mode) == ("send", "receive", "frame")
    assert (two.alone, two.versions) == (True, ())


def test_a_run_chooses_versions() -> None:
    (three, _four) = runs_of(parse("file", TEXT)[0])
    create, _wait, call, send, *_ = three.conversation.steps
    assert three.name == "one-v3"
    assert [three.version_of(s) for s in (create, call, send)] == [7, 3, 3]
    assert runs_of(parse("file", TEXT)[1])[0].name == "two"


def test_paths() -> None:
    assert parse_path("a[0].b[*].c[name=$t].d").segments == ("a", 0, "b", "*", "c", ("name", Name("t")), "d")
    assert parse_path("x[y=z]").segments == ("x", ("y", Text("z")))


@pytest.mark.parametrize(
    "text",
    [
        "Metadata topics=[]",
        "conversation a\n  versions Nothing",
        "conversation a\n  versions Metadata 9-99",
        "conversation a\n  hello there",
        "conversation a\nNothing x=1",
        "conversation a\nreceive x=1",
        "conversation a\nMetadata\n  until topics",
        "conversation a\ntopic t colour=red",
        "conversation a\nMetadata topics=[",
    ],
)
def test_refuses_what_it_does_not_understand(text: str) -> None:
    with pytest.raises(BadText):
        parse("file", text)


def test_two_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("conversation a\nApiVersions/0\n")
    (tmp_path / "b.txt").write_text("conversation a\nApiVersions/0\n")
    with pytest.raises(BadText, match="two conversations are named"):
        load_all(tmp_path)


def test_each_api_is_gone_through_in_all_its_versions() -> None:
    wanted = {(api, v) for api, (first, last) in ADVERTISED.items() for v in range(first, last + 1)}
    for one in load_all(CONVERSATIONS):
        wanted -= {(one.api, v) for v in one.versions}
    assert wanted == set()


def test_each_says_what_it_shows() -> None:
    assert [c.name for c in load_all(CONVERSATIONS) if not c.about] == []


def test_every_api_with_a_list_is_asked_for_the_same_thing_twice() -> None:
    """Kafka merges such entries, refuses them, or answers each of them, without a rule that would tell which."""
    asked = {
        step.api
        for conversation in load_all(CONVERSATIONS)
        for step in conversation.steps
        if (conversation.name.startswith("twice-") and step.api == conversation.api)
        or re.search(r"\btwice\b", step.case)
    }
    requests = {
        APIS[key].name: getattr(
            importlib.import_module(f"tidelog.wire.messages.{APIS[key].module}"), f"{APIS[key].name}Request"
        )
        for key in TABLE
    }
    with_lists = {name for name, request in requests.items() if "[]" in request.FIELDS}
    assert len(with_lists) > 40
    assert with_lists - asked == set()
