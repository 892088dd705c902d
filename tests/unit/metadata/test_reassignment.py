"""Reassignments over several topics. Their rules are in `tests/scenarios/controller/reassignment.txt`."""

from metadata_harness.journal_life import JournalLife
from tidelog.metadata.controller import NewTopic, create_topics
from tidelog.metadata.reassignment import (
    OngoingReassignment,
    Reassignment,
    alter_reassignments,
    list_reassignments,
)
from tidelog.model.steps import run_all
from tidelog.wire.errors import ErrorCode


def cluster() -> JournalLife:
    life = JournalLife()
    life.start(1, 2, 3)
    topics = [NewTopic(name, assignments=[(0, (1, 2)), (1, (2, 1))]) for name in "ab"]
    life.decide(create_topics(life.image, topics, life.config, life.new_id))
    return life


def test_each_partition_of_a_request_stands_alone_and_all_changes_are_one_entry() -> None:
    life = cluster()
    before = len(life.journal)
    requests = [
        Reassignment("a", 0, (3, 2)), Reassignment("a", 5, (3, 2)), Reassignment("b", 1, (2, 3)),
        Reassignment("b", 0, None),
    ]  # fmt: skip
    results = life.decide(alter_reassignments(life.image, requests, life.config))
    assert [(r.topic, r.partition, r.error) for r in results] == [
        ("a", 0, ErrorCode.NONE),
        ("a", 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("b", 1, ErrorCode.NONE),
        ("b", 0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ]
    assert len(life.journal) == before + 1


def test_reassignments_are_listed_for_all_topics_or_for_some_partitions() -> None:
    life = cluster()
    requests = [Reassignment("a", 0, (3, 2)), Reassignment("b", 1, (2, 3))]
    life.decide(alter_reassignments(life.image, requests, life.config))
    in_a = OngoingReassignment(0, (3, 2, 1), (3,), (1,))
    in_b = OngoingReassignment(1, (2, 3, 1), (3,), (1,))
    assert run_all(list_reassignments(life.image)) == {"a": [in_a], "b": [in_b]}
    assert run_all(list_reassignments(life.image, {"a": [0, 1, 7], "nope": [0]})) == {"a": [in_a]}
    assert run_all(list_reassignments(life.image, {"b": [0, -1]})) == {}


def test_a_partition_that_a_request_names_twice_gets_the_last_of_its_targets() -> None:
    life = cluster()
    requests = [Reassignment("a", 0, (3, 2)), Reassignment("a", 0, (2, 1))]
    results = life.decide(alter_reassignments(life.image, requests, life.config))
    assert [r.error for r in results] == [ErrorCode.NONE] * 2
    state = life.image.topics["a"].partitions[0]
    assert (state.replicas, state.adding, state.removing, state.leader_epoch) == ((2, 1), (), (), 1)
    assert state.partition_epoch == 1
