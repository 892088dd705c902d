"""`tidelog cluster`: the requests that its commands send, to a broker that knows three others."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cli_harness import Answer, AnsweringBroker, answering, tidelog
from tidelog.cli import cluster_growth, cluster_moves
from tidelog.cli.cluster_features import FeatureLevel
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tidelog.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tidelog.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tidelog.wire.messages.elect_leaders import ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from tidelog.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from tidelog.wire.messages.unregister_broker import UnregisterBrokerResponse
from tidelog.wire.messages.update_features import UpdateFeaturesResponse


class FakeCluster:
    """Three brokers and the topic `orders`. Every broker has the address of the one that answers."""

    def __init__(self) -> None:
        self.replicas = {0: [1, 2], 1: [2, 1]}
        self.leaders = {0: 1, 1: 1}
        self.unfinished: dict[int, tuple[list[int], int]] = {}
        """New replicas of partitions that move, and how often the move is still reported."""
        self.fenced: set[int] = set()
        self.refuses: dict[int, int] = {}
        """Error codes of reassignments and elections, by partition."""
        self.settings: dict[tuple[int, str], dict[str, str | None]] = {}
        self.broker: AnsweringBroker

    def answers(self) -> Mapping[str, Answer]:
        return {
            "Metadata": self.metadata,
            "DescribeCluster": self.describe_cluster,
            "DescribeTopicPartitions": self.describe_partitions,
            "DescribeConfigs": self.describe_configs,
            "ListPartitionReassignments": self.list_reassignments,
            "AlterPartitionReassignments": self.reassign,
            "ElectLeaders": self.elect,
            "IncrementalAlterConfigs": self.alter_configs,
            "UpdateFeatures": lambda request: UpdateFeaturesResponse(),
            "UnregisterBroker": lambda request: UnregisterBrokerResponse(
                0, self.refuses.get(request.broker_id, 0), None
            ),
        }

    def requests(self, name: str) -> list[Any]:
        return [request for request in self.broker.asked if type(request).__name__ == f"{name}Request"]

    def metadata(self, request: Any) -> MetadataResponse:
        brokers = [MetadataResponseBroker(number, self.broker.host, self.broker.port) for number in (1, 2, 3)]
        names = ["orders"] if request.topics is None else [topic.name for topic in request.topics]
        topics = [MetadataResponseTopic(0 if name == "orders" else 3, name) for name in names]
        return MetadataResponse(brokers=brokers, controller_id=1, topics=topics)

    def describe_cluster(self, request: Any) -> DescribeClusterResponse:
        brokers = [
            DescribeClusterBroker(number, self.broker.host, self.broker.port, None, number in self.fenced)
            for number in (1, 2, 3)
        ]
        return DescribeClusterResponse(cluster_id="c", controller_id=1, brokers=brokers)

    def describe_partitions(self, request: Any) -> DescribeTopicPartitionsResponse:
        """Answer one partition at a time."""
        first = request.cursor.partition_index if request.cursor else 0
        part = DescribeTopicPartitionsResponsePartition(
            partition_index=first,
            leader_id=self.leaders[first],
            replica_nodes=self.replicas[first],
            isr_nodes=self.replicas[first] if self.leaders[first] >= 0 else [],
        )
        topic = DescribeTopicPartitionsResponseTopic(name="orders", partitions=[part])
        cursor = Cursor("orders", first + 1) if first + 1 in self.replicas else None
        return DescribeTopicPartitionsResponse(topics=[topic], next_cursor=cursor)

    def describe_configs(self, request: Any) -> DescribeConfigsResponse:
        config = DescribeConfigsResourceResult(name="min.insync.replicas", value="2")
        return DescribeConfigsResponse(
            results=[DescribeConfigsResult(resource_type=2, resource_name="orders", configs=[config])]
        )

    def list_reassignments(self, request: Any) -> ListPartitionReassignmentsResponse:
        parts = []
        for number, (after, left) in list(self.unfinished.items()):
            if left:
                self.unfinished[number] = (after, left - 1)
                adding = [broker for broker in after if broker not in self.replicas[number]]
                parts.append(OngoingPartitionReassignment(number, after, adding, []))
            else:
                self.replicas[number] = after
                del self.unfinished[number]
        return ListPartitionReassignmentsResponse(topics=[OngoingTopicReassignment("orders", parts)] if parts else [])

    def reassign(self, request: Any) -> AlterPartitionReassignmentsResponse:
        results = []
        for part in request.topics[0].partitions:
            code = self.refuses.get(part.partition_index, 0)
            if not code and part.replicas is not None:
                self.unfinished[part.partition_index] = (part.replicas, 2)
            elif not code:
                del self.unfinished[part.partition_index]
            results.append(ReassignablePartitionResponse(part.partition_index, code, None))
        return AlterPartitionReassignmentsResponse(responses=[ReassignableTopicResponse("orders", results)])

    def elect(self, request: Any) -> ElectLeadersResponse:
        results = []
        for number in request.topic_partitions[0].partitions:
            code = self.refuses.get(number, 0)
            if not code:
                self.leaders[number] = self.replicas[number][0]
            results.append(PartitionResult(number, code, None))
        return ElectLeadersResponse(replica_election_results=[ReplicaElectionResult("orders", results)])

    def alter_configs(self, request: Any) -> IncrementalAlterConfigsResponse:
        (resource,) = request.resources
        own = self.settings.setdefault((resource.resource_type, resource.resource_name), {})
        own.update({config.name: config.value for config in resource.configs})
        return IncrementalAlterConfigsResponse(
            responses=[AlterConfigsResourceResponse(0, None, resource.resource_type, resource.resource_name)]
        )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr(cluster_moves, "POLL_S", 0.01)
    fake = FakeCluster()
    with answering(fake.answers()) as broker:
        fake.broker = broker
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", broker.bootstrap)
        yield fake


def test_status_asks_for_everything_and_reports_it(cluster: FakeCluster) -> None:
    document = tidelog("cluster", "status", "--json").json()
    assert (document["healthy"], document["controller"], document["topics"], document["partitions"]) == (
        True,
        None,
        1,
        2,
    )
    assert [(part["partition"], part["min_insync_replicas"]) for part in document["not_preferred_leader"]] == [(1, 2)]
    cluster.fenced = {3}
    assert tidelog("cluster", "status", "--json", code=3).json()["healthy"] is False
    brokers = tidelog("cluster", "brokers", "--json").json()
    assert [(each["broker"], each["fenced"], each["leaders"]) for each in brokers] == [
        (1, False, 2),
        (2, False, 0),
        (3, True, 0),
    ]


def test_a_topic_that_is_refused_does_not_hide_the_others(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = cluster.describe_partitions

    def also_a_secret(request: Any) -> DescribeTopicPartitionsResponse:
        answer = describe(request)
        if request.cursor is None:
            answer.topics.append(DescribeTopicPartitionsResponseTopic(29, name="secret"))
            answer.topics.append(DescribeTopicPartitionsResponseTopic(3, name="deleted-meanwhile"))
        return answer

    cluster.broker.answers["DescribeTopicPartitions"] = also_a_secret
    cluster.broker.answers["ListPartitionReassignments"] = lambda _: ListPartitionReassignmentsResponse(error_code=31)
    ran = tidelog("cluster", "status", "--all", code=3)
    assert "orders" in ran.text
    assert "Partitions: 1 led by another. The partitions of 1 topic are not known.\n" in ran.text
    notes = ran.errors.splitlines()
    assert "topic secret: TOPIC_AUTHORIZATION_FAILED" in notes[0]
    assert "unfinished moves cannot be read" in notes[1]
    assert len(notes) == 2
    assert len(tidelog("cluster", "brokers", "--json").json()) == 3
    state = tidelog("cluster", "status", "--json", code=3).json()
    assert (state["healthy"], state["partitions"], len(state["problems"])) == (False, 2, 2)


def test_a_broker_that_cannot_report_fenced_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCluster()
    old = {name: answer for name, answer in fake.answers().items() if "Reassign" not in name}
    with answering(old, {"DescribeCluster": 1}) as broker:
        fake.broker = broker
        assert tidelog("cluster", "status", "--json", "-b", broker.bootstrap).json()["healthy"] is True


def grown(cluster: FakeCluster, replicas: list[int], *, factor: str = "3", code: int = 0) -> None:
    """Let `__consumer_offsets` have these replicas, and the brokers this `offsets.topic.replication.factor`."""
    internal = DescribeTopicPartitionsResponseTopic(
        name="__consumer_offsets",
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                partition_index=index, leader_id=brokers[0], replica_nodes=brokers, isr_nodes=brokers
            )
            for index, brokers in enumerate(([1, 2, 3], replicas))
        ],
    )

    def describe_configs(request: Any) -> DescribeConfigsResponse:
        (resource,) = request.resources
        if resource.resource_type == 2:
            return cluster.describe_configs(request)
        assert (resource.resource_type, resource.resource_name) == (4, "1")
        config = DescribeConfigsResourceResult(name="offsets.topic.replication.factor", value=factor)
        result = DescribeConfigsResult(code, None, 4, "1", configs=[config])
        return DescribeConfigsResponse(results=[result])

    cluster.broker.answers["DescribeTopicPartitions"] = lambda _: DescribeTopicPartitionsResponse(topics=[internal])
    cluster.broker.answers["DescribeConfigs"] = describe_configs


def test_status_warns_of_an_internal_topic_with_too_few_replicas(cluster: FakeCluster) -> None:
    grown(cluster, [1])
    ran = tidelog("cluster", "status")
    (warning,) = [line for line in ran.text.splitlines() if line.startswith("Warning: ")]
    assert "__consumer_offsets has 1 replica, but could have 3 (offsets.topic.replication.factor)" in warning
    assert warning.endswith("tidelog cluster reassign --topics __consumer_offsets --replicas 3 --execute")
    state = tidelog("cluster", "status", "--json").json()
    assert (state["healthy"], [f"Warning: {text}" for text in state["warnings"]]) == (True, [warning])
    grown(cluster, [1], factor="2")
    assert "could have 2" in tidelog("cluster", "status").text
    grown(cluster, [1], factor="9")
    assert "could have 3" in tidelog("cluster", "status").text, "there are three brokers"
    cluster.fenced = {3}
    assert "could have 2" in tidelog("cluster", "status", code=3).text, "a fenced broker cannot get replicas"
    cluster.fenced = set()
    for replicas, factor in (([1], "1"), ([2, 1], "2"), ([1, 2, 3], "3")):
        grown(cluster, replicas, factor=factor)
        assert "Warning" not in tidelog("cluster", "status").text
    grown(cluster, [1], code=29)
    ran = tidelog("cluster", "status")
    assert "Warning" not in ran.text
    assert "it is not known whether the cluster lacks replicas" in ran.errors


@pytest.mark.parametrize(("feature", "level", "warns"), [
    ("tidelog.metadata.version", 0, True), ("tidelog.metadata.version", 1, False), ("metadata.version", 0, False),
])  # fmt: skip
def test_status_warns_until_the_metadata_has_the_level_of_a_cluster(
    feature: str, level: int, warns: bool, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_growth, "read_levels", lambda _: [FeatureLevel(feature, level, 1)])
    warnings = tidelog("cluster", "status", "--json").json()["warnings"]
    assert [warning.endswith(": tidelog cluster upgrade --execute") for warning in warnings] == [True] * warns


def test_a_plan_changes_nothing_unless_it_is_executed(cluster: FakeCluster) -> None:
    ran = tidelog("cluster", "reassign", "--brokers", "1,3")
    assert "orders          0  1, 2      3, 1          3          2" in ran.text
    assert ran.text.endswith(
        "2 partitions would change, 2 replicas would be copied. To carry this out, add --execute.\n"
    )
    assert not cluster.requests("AlterPartitionReassignments")
    plan = tidelog("cluster", "reassign", "--brokers", "1,3", "--json").json()
    assert plan["partitions"][0] == {"topic": "orders", "partition": 0, "replicas": [3, 1]}


def test_a_plan_is_executed_and_watched_with_a_limit(cluster: FakeCluster, tmp_path: Path) -> None:
    undo = tmp_path / "undo.json"
    ran = tidelog(
        "cluster", "reassign", "--brokers", "1,3", "--execute", "--watch", "--throttle", "1000", "--undo", str(undo)
    )
    assert ran.text.endswith("Done: 2 partitions.\n")
    assert "0 of 2 done, 2 moving: orders-0, orders-1\n2 of 2 done, 0 moving\n" in ran.errors
    assert [sorted(replicas) for replicas in cluster.replicas.values()] == [[1, 3], [1, 3]]
    throttled = cluster.requests("IncrementalAlterConfigs")
    values = {config.value for request in throttled for config in request.resources[0].configs}
    assert {"1000", "0:1,0:2,1:2,1:1", "0:3,1:3", None} == values
    assert set(cluster.settings) == {(4, "1"), (4, "2"), (4, "3"), (2, "orders")}
    assert all(value is None for own in cluster.settings.values() for value in own.values()), "the limit is removed"
    tidelog("cluster", "reassign", "--plan", str(undo), "--execute", "--watch")
    assert cluster.replicas == {0: [1, 2], 1: [2, 1]}


def test_a_move_that_another_client_cancels_is_not_reported_as_done(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for = cluster_moves.wait_for

    def cancel_first(*arguments: Any, **options: Any) -> None:
        del cluster.unfinished[1]
        wait_for(*arguments, **options)

    monkeypatch.setattr(cluster_moves, "wait_for", cancel_first)
    ran = tidelog("cluster", "drain", "2", "--execute", code=1)
    assert ran.text.endswith("Done: 1 partition.\n")
    assert "Error: orders-1: the move was cancelled or replaced; the replicas are on 2, 1\n" in ran.errors


def test_cancelling_removes_the_limit_that_other_moves_do_not_need(cluster: FakeCluster) -> None:
    tidelog("cluster", "reassign", "--brokers", "1,3", "--execute", "--throttle", "1000")
    assert {value for own in cluster.settings.values() for value in own.values()} == {
        "1000", "0:1,0:2,1:2,1:1", "0:3,1:3",
    }  # fmt: skip
    cluster.unfinished = {number: (after, 100) for number, (after, _) in cluster.unfinished.items()}
    cluster.refuses = {1: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert tidelog("cluster", "reassign", "--cancel", code=1).text == "Cancelled: 1 move.\n"
    assert set(cluster.settings[2, "orders"].values()) == {None}
    assert set(cluster.settings[4, "1"].values()) == {"1000"}
    cluster.refuses = {}
    tidelog("cluster", "reassign", "--cancel")
    assert {value for own in cluster.settings.values() for value in own.values()} == {None}


def test_a_broker_without_an_answer_does_not_keep_a_limit_from_being_removed_elsewhere(cluster: FakeCluster) -> None:
    tidelog("cluster", "reassign", "--brokers", "1,3", "--execute", "--throttle", "1000")

    def disconnects_broker_1(request: Any) -> IncrementalAlterConfigsResponse | None:
        (resource,) = request.resources
        if (resource.resource_type, resource.resource_name) == (2, "orders"):
            answer = cluster.alter_configs(request)
            answer.responses[0].error_code = ErrorCode.POLICY_VIOLATION
            return answer
        return cluster.alter_configs(request) if resource.resource_name != "1" else None

    cluster.broker.answers["IncrementalAlterConfigs"] = disconnects_broker_1
    ran = tidelog("cluster", "reassign", "--clear-throttle", code=1)
    assert "Error: broker 1: " in ran.errors
    assert "; topic orders: POLICY_VIOLATION" in ran.errors
    assert {own for own, settings in cluster.settings.items() if set(settings.values()) == {None}} == {
        (4, "2"), (4, "3"), (2, "orders"),
    }  # fmt: skip
    refused = tidelog("cluster", "reassign", "--brokers", "2,3", "--execute", "--throttle", "1000", code=1).errors
    assert (
        "Error: nothing was moved, because the limit of --throttle could not be set everywhere: broker 1: " in refused
    )
    assert "tidelog cluster reassign --clear-throttle" in refused


def test_the_replicas_of_ended_moves_are_read_without_a_pause_after_the_last_time(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_moves, "wait_for", lambda *_, **__: cluster.unfinished.clear())
    pauses: list[float] = []
    monkeypatch.setattr(cluster_moves.time, "sleep", pauses.append)

    def without_the_topic(request: Any) -> DescribeTopicPartitionsResponse:
        return DescribeTopicPartitionsResponse()

    reassign = cluster.reassign

    def deletes_topic(request: Any) -> AlterPartitionReassignmentsResponse:
        cluster.broker.answers["DescribeTopicPartitions"] = without_the_topic
        return reassign(request)

    cluster.broker.answers["AlterPartitionReassignments"] = deletes_topic
    ran = tidelog("cluster", "reassign", "--brokers", "1,3", "--execute", "--watch", code=1)
    assert "Error: orders-0: the topic was deleted, so the move has ended\n" in ran.errors
    assert "cancelled" not in ran.errors
    assert len(pauses) == cluster_moves.READS_MAX - 1


def test_a_refused_move_is_reported(cluster: FakeCluster) -> None:
    cluster.refuses = {0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    ran = tidelog("cluster", "reassign", "--brokers", "1,3", "--execute", code=1)
    assert "Started: 1 partition." in ran.text
    assert "Error: orders-0: topic orders: INVALID_REPLICA_ASSIGNMENT" in ran.errors


def test_unfinished_moves_are_listed_watched_and_cancelled(cluster: FakeCluster) -> None:
    assert tidelog("cluster", "reassign").text == "No partition moves.\n"
    cluster.unfinished = {1: ([2, 3], 100)}
    assert tidelog("cluster", "reassign", "--json").json() == [
        {"topic": "orders", "partition": 1, "adding": [3], "removing": []}
    ]
    assert tidelog("cluster", "reassign", "--cancel").text == "Cancelled: 1 move.\n"
    (request,) = cluster.requests("AlterPartitionReassignments")
    assert request.topics[0].partitions[0].replicas is None
    cluster.unfinished = {1: ([2, 3], 2)}
    assert tidelog("cluster", "reassign", "--watch").text == "No partition moves.\n"


def test_moves_of_a_topic_that_does_not_exist_are_not_no_moves(cluster: FakeCluster) -> None:
    cluster.unfinished = {1: ([2, 3], 100)}
    for option in ([], ["--watch"], ["--cancel"]):
        ran = tidelog("cluster", "reassign", "--topics", "ordres", *option, code=1)
        assert ran.errors == "Error: no such topic: ordres; did you mean orders?\n"
    cluster.unfinished.clear()
    for option in ([], ["--watch"], ["--cancel"]):
        ran = tidelog("cluster", "reassign", "--topics", "orders", *option)
        assert ran.text == "No partition of orders moves.\n"


def test_a_topic_whose_settings_are_refused_is_named(cluster: FakeCluster) -> None:
    """Otherwise the state would be better than it is: with fewer in-sync replicas than min.insync.replicas."""
    cluster.broker.answers["DescribeConfigs"] = lambda request: DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, each.resource_type, each.resource_name)
            for each in request.resources
        ]
    )
    notes = tidelog("cluster", "status").errors
    refused = "min.insync.replicas of topic orders cannot be read, and is taken to be 1: TOPIC_AUTHORIZATION_FAILED"
    assert f"Note: {refused}\n" in notes
    assert "2 partitions would" in tidelog("cluster", "reassign", "--brokers", "1,3").text, (
        "plans do not need the setting"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--brokers", "1,x"], 2, "--brokers takes broker numbers, for example --brokers 1,2,3, not '1,x'"),
        (["--brokers", "1,7"], 1, "there is no broker 7; the cluster has the brokers 1, 2, 3"),
        (["--brokers", "1,7,9"], 1, "there are no brokers 7, 9; the cluster has the brokers 1, 2, 3"),
        (["--brokers", "1"], 1, "partition orders-0 needs 2 brokers for its replicas, and only 1 may be used (1)"),
        (["--execute"], 2, "there is no plan: name the brokers with --brokers"),
        (["--brokers", "1,2", "--cancel"], 2, "cannot be combined"),
        (["--plan", "x", "--topics", "y"], 2, "--plan already says which partitions move"),
        (["--plan", "/no/such"], 2, "--plan /no/such: No such file or directory"),
        (["--topics", "orders", "--replicas", "4"], 1, "needs 4 brokers for its replicas, and only 3 may be used"),
    ],
)
def test_refused_command_lines(cluster: FakeCluster, arguments: list[str], code: int, error: str) -> None:
    assert error in tidelog("cluster", "reassign", *arguments, code=code).errors
    assert not cluster.requests("AlterPartitionReassignments")


def test_a_fenced_broker_gets_no_replicas(cluster: FakeCluster) -> None:
    cluster.fenced = {3}
    assert "broker 3 is down or not ready" in tidelog("cluster", "reassign", "--brokers", "1,3", code=1).errors
    ran = tidelog("cluster", "drain", "2", code=1)
    assert "broker 2 cannot be emptied: no other active broker is free for its replica of orders-0" in ran.errors


def test_a_broker_is_drained(cluster: FakeCluster) -> None:
    assert "2 partitions would change" in tidelog("cluster", "drain", "2").text
    assert tidelog("cluster", "drain", "2", "--execute").text.endswith("Done: 2 partitions.\n")
    assert cluster.replicas == {0: [1, 3], 1: [3, 1]}
    assert tidelog("cluster", "drain", "2", "--execute").text == "Nothing has to move.\n"
    assert "there is no broker 9" in tidelog("cluster", "drain", "9", code=1).errors


def test_leaderships_are_drained(cluster: FakeCluster) -> None:
    tidelog("cluster", "drain", "1", "--leaders", "--execute")
    assert cluster.replicas == {0: [2, 1], 1: [2, 1]}
    assert cluster.leaders == {0: 2, 1: 2}
    assert "--leaders moves no data" in tidelog("cluster", "drain", "1", "--leaders", "--throttle", "1", code=2).errors


def test_a_broker_without_replicas_that_does_not_run_is_unregistered(cluster: FakeCluster) -> None:
    refused = tidelog("cluster", "unregister", "2", code=1).errors
    assert "broker 2 has 2 replicas, for example of orders-0: move them away with tidelog cluster drain 2" in refused
    assert (
        "broker 3 is active, and would register again: stop it first"
        in tidelog("cluster", "unregister", "3", code=1).errors
    )
    assert (
        "there is no broker 9; the cluster has the brokers 1, 2, 3"
        in tidelog("cluster", "unregister", "9", code=1).errors
    )
    assert not cluster.requests("UnregisterBroker")
    cluster.fenced = {3}
    assert tidelog("cluster", "unregister", "3").text == "Broker 3 is no longer registered.\n"
    assert tidelog("cluster", "unregister", "3", "--json").json() == {"unregistered": 3}
    assert [request.broker_id for request in cluster.requests("UnregisterBroker")] == [3, 3]
    cluster.refuses = {3: ErrorCode.BROKER_ID_NOT_REGISTERED}
    assert "BROKER_ID_NOT_REGISTERED" in tidelog("cluster", "unregister", "3", code=1).errors


def test_preferred_leaders_are_elected(cluster: FakeCluster) -> None:
    ran = tidelog("cluster", "elect")
    assert ran.text == "TOPIC   PARTITION  LEADER\norders          1       2\n"
    (request,) = cluster.requests("ElectLeaders")
    assert (request.election_type, request.topic_partitions[0].partitions) == (0, [1])
    assert tidelog("cluster", "elect").text == "Every partition is led by its preferred leader.\n"


def test_a_failed_election(cluster: FakeCluster) -> None:
    cluster.refuses = {1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert tidelog("cluster", "elect", "--json", code=1).json() == [
        {"topic": "orders", "partition": 1, "leader": 1, "error": "PREFERRED_LEADER_NOT_AVAILABLE"}
    ]
    cluster.refuses = {1: ErrorCode.ELECTION_NOT_NEEDED}
    assert tidelog("cluster", "elect", "orders", "--json").json()[0]["error"] == ""


def test_an_unclean_election_needs_a_yes(cluster: FakeCluster) -> None:
    assert tidelog("cluster", "elect", "--unclean").text == "Every partition has a leader.\n"
    cluster.leaders[0] = -1
    assert (
        "may lose records of orders-0; to elect leaders anyway, add --yes"
        in tidelog("cluster", "elect", "--unclean", code=1).errors
    )
    assert not cluster.requests("ElectLeaders")
    tidelog("cluster", "elect", "--unclean", "--yes")
    (request,) = cluster.requests("ElectLeaders")
    assert (request.election_type, request.topic_partitions[0].partitions) == (1, [0])


def test_plans_of_kafkas_tool_are_read_from_stdin(cluster: FakeCluster) -> None:
    document = {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [3, 1]}]}
    tidelog("cluster", "reassign", "--plan", "-", "--execute", "--watch", stdin=json.dumps(document).encode())
    assert cluster.replicas[0] == [3, 1]
