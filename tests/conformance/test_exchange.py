"""Run conversations with a broker that replays the recording."""

import struct

import pytest

from . import recording, rules
from .command import CONVERSATIONS
from .compare import Bindings, Tally, compare_runs
from .conversation import Condition, Run, load_all, parse, parse_path, runs_of
from .exchange import Transcript, find, run_conversation
from .replaying import change_answer, serve_recording

EVERY = {run.name: run for one in load_all(CONVERSATIONS) for run in runs_of(one)}
CHOSEN = [
    "produce-v9",
    "produce-idempotent-v13",
    "fetch-v12",
    "fetch-session-v13",
    "group-two-members-v9",
    "group-two-members-v0",
    "frames-unknown-api",
    "frames-order",
    "produce-acks-0-bad-v7",
    "create-topics-v7",
]


def transcript_of(run: Run) -> Transcript:
    return recording.read(run.conversation.file)[run.name]


@pytest.mark.parametrize("name", CHOSEN)
def test_the_recorded_requests_are_sent_and_their_answers_found_equal(name: str) -> None:
    run = EVERY[name]
    recorded = transcript_of(run)
    with serve_recording([recorded]) as address:
        transcript = run_conversation(run, address)
    assert (transcript.stop_reason, transcript.failed_conditions) == ("", ())
    assert [o.request[8:] for o in transcript.outcomes] == [o.request[8:] for o in recorded.outcomes]
    tally = Tally()
    assert compare_runs(run, recorded, transcript, rules.parse(""), Bindings(), tally) == []
    assert tally.cases == len(recorded.outcomes)


def test_a_changed_byte_is_found() -> None:
    run = EVERY["produce-v9"]
    recorded = transcript_of(run)
    step = next(i for i, s in enumerate(run.conversation.steps) if s.case == "gzip")
    offset = struct.pack(">q", 5)
    with serve_recording([change_answer(recorded, step, (offset, struct.pack(">q", 6)))]) as address:
        transcript = run_conversation(run, address)
    (difference,) = compare_runs(run, recorded, transcript, rules.load(), Bindings(), Tally())
    assert (difference.case, difference.recorded, difference.ours) == ("gzip", 5, 6)
    assert difference.path.endswith("base_offset")


def run_of(text: str) -> Run:
    return runs_of(parse("file", f"conversation c\n{text}")[0])[0]


def test_a_conversation_stops_where_it_cannot_go_on() -> None:
    with serve_recording([]) as address:
        transcript = run_conversation(run_of("Heartbeat/0\n  keep x = member_id\nHeartbeat/0 member_id=$x"), address)
    assert "closed, but a variable needs the answer" in transcript.stop_reason
    assert len(transcript.outcomes) == 1


def test_conditions_that_do_not_hold_are_told() -> None:
    run = EVERY["find-coordinator-v1"]
    recorded = transcript_of(run)
    first = run.conversation.steps[0]
    strict = first._replace(expect=(parse_condition("error_code == 5"),), within_ms=(5_000, 6_000))
    changed = run._replace(conversation=run.conversation._replace(steps=(strict, *run.conversation.steps[1:])))
    with serve_recording([recorded]) as address:
        transcript = run_conversation(changed, address)
    assert len(transcript.failed_conditions) == 2
    assert "took" in transcript.failed_conditions[0]
    assert "error_code is NONE" in transcript.failed_conditions[1]


def parse_condition(text: str) -> Condition:
    return run_of(f"Heartbeat/0\n  expect {text}").conversation.steps[0].expect[0]


def test_paths_in_answers() -> None:
    tree = {"topics": [{"name": "a", "ids": [1, 2]}, {"name": "b", "ids": []}]}
    variables = {"t": "b"}
    assert find(tree, parse_path("topics[0].ids[1]"), variables) == [2]
    assert find(tree, parse_path("topics[*].name"), variables) == ["a", "b"]
    assert find(tree, parse_path("topics[name=$t].ids"), variables) == [[]]
    assert find(tree, parse_path("topics[7].name"), variables) == []
    assert find(tree, parse_path("nothing.there"), variables) == []
