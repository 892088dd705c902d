"""Commands on groups show groups with any names, and answers with any bytes."""

import itertools
import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_harness import ENCODINGS, answering, tidelog
from cli_harness.names import check_table, escaped, name_of, named
from tidelog.client.blocking import Client
from tidelog.model.ids import TopicPartition
from tidelog.testing import Broker
from tidelog.wire.message import Message
from tidelog.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from tidelog.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tidelog.wire.messages.list_groups import ListedGroup, ListGroupsResponse
from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from tidelog.wire.messages.offset_fetch import OffsetFetchResponse, OffsetFetchResponseGroup

EXAMPLES = int(os.environ.get("TIDELOG_EXAMPLES", "12"))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "a\0b", "\x1b[2J", "a\nb\r", "\ufeffbom", "é漢😀", '"', "\\", "\\x1b", "x" * 3000, "--help", "-x"]
)
any_bytes = st.binary(max_size=12) | st.sampled_from([b"\xff", b"a\0b", b"\xed\xa0\x80", b"\x1b[2J", b""])
numbers = itertools.count()


@given(st.lists(texts, min_size=1, max_size=4, unique=True), st.sampled_from(ENCODINGS))
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_groups_are_listed_described_reset_copied_and_deleted(broker: Broker, names: list[str], encoding: str) -> None:
    where = ("-b", broker.bootstrap)
    with Client(broker.bootstrap) as client:
        for name in names:
            committed = client.commit(name, {TopicPartition("t", 0): 0})
            assert committed == {TopicPartition("t", 0): 0}
    typed = [escaped(name) for name in names]
    assert sorted(named(group, "group") for group in run_json("list", *where, encoding=encoding)) == sorted(names)
    for command in (["list"], ["lag"], ["list", "--names"]):
        check_table(tidelog("group", *command, *where, encoding=encoding))
    described = run_json("describe", "--escaped", *where, "--", *typed, encoding=encoding)
    assert [named(group, "group") for group in described] == names
    lags = run_json("lag", "--escaped", *where, "--", *typed, encoding=encoding)
    assert sorted(named(lag, "group") for lag in lags) == sorted(names)
    ran = tidelog(
        "group", "reset-offsets", "--to-latest", "--execute", "--escaped", *where, "--", typed[0], encoding=encoding
    )
    check_table(ran)
    copy = f"copy-{next(numbers)}"
    check_table(
        tidelog("group", "copy-offsets", "--execute", "--escaped", *where, "--", typed[0], copy, encoding=encoding)
    )
    check_table(tidelog("group", "delete", "--yes", "--escaped", *where, "--", *typed, copy, encoding=encoding))
    assert run_json("list", *where, encoding=encoding) == []


def run_json(command: str, *arguments: str, encoding: str) -> Any:
    return tidelog("group", command, "--json", *arguments, encoding=encoding).json()


members = st.builds(
    lambda member, client, host, assignment: DescribedGroupMember(
        name_of(member), None, name_of(client), name_of(host), b"", assignment
    ),
    any_bytes,
    any_bytes,
    any_bytes,
    any_bytes,
)
described_groups = st.builds(
    lambda name, protocol, data, message, code, found: DescribedGroup(
        code, name_of(message), name_of(name), "Stable", protocol, name_of(data), found
    ),
    any_bytes,
    st.sampled_from(["consumer", "connect", ""]) | any_bytes.map(name_of),
    any_bytes,
    any_bytes,
    st.sampled_from([0, 0, 0, 30, 69, 9999]),
    st.lists(members, max_size=3),
)


@given(st.lists(described_groups, max_size=4, unique_by=lambda group: group.group_id), st.sampled_from(ENCODINGS))
@settings(max_examples=4 * EXAMPLES)
def test_answers_of_any_bytes(groups: list[DescribedGroup], encoding: str) -> None:
    by_name = {group.group_id: group for group in groups}

    def found(request: Any) -> Message:
        where = [Coordinator(key, 1, broker.host, broker.port) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=where)

    answers = {
        "Metadata": lambda request: MetadataResponse(
            brokers=[MetadataResponseBroker(1, broker.host, broker.port)],
            topics=[MetadataResponseTopic(3, topic.name) for topic in request.topics or ()],
        ),
        "ListGroups": lambda _: ListGroupsResponse(
            groups=[ListedGroup(name, "consumer", "Stable", "classic") for name in by_name]
        ),
        "FindCoordinator": found,
        "DescribeGroups": lambda request: DescribeGroupsResponse(groups=[by_name[name] for name in request.groups]),
        "OffsetFetch": lambda request: OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup(group.group_id) for group in request.groups]
        ),
    }
    with answering(answers, {"OffsetFetch": 9}) as broker:
        where = ("-b", broker.bootstrap)
        listed = run_json("list", *where, encoding=encoding)
        there = sorted(group.group_id for group in groups if group.error_code != 69)
        assert sorted(named(group, "group") for group in listed) == there
        for group in listed:
            assert (group["problem"] is not None) >= (by_name[named(group, "group")].error_code != 0)
        for command in (["list"], ["list", "--names"], ["lag"]):
            check_table(tidelog("group", *command, *where, encoding=encoding))
        typed = [escaped(name) for name in by_name]
        if not typed:
            return
        sound = [name for name, group in by_name.items() if not group.error_code]
        ran = tidelog("group", "describe", "--json", "--escaped", *where, "--", *typed, encoding=encoding, code=None)
        assert ran.code == int(len(sound) < len(by_name))
        assert [named(group, "group") for group in ran.json()] == sound
        check_table(tidelog("group", "describe", "--escaped", *where, "--", *typed, encoding=encoding, code=None))
