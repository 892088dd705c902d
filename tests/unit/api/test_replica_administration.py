"""Elections, reassignments and the removal of brokers on request, in a cluster of three brokers."""

from typing import Any, cast

from metadata_harness.controlled import Node, with_node
from metadata_harness.journal_life import JournalLife
from tidelog.metadata import link
from tidelog.metadata.controller import NAMED_PARTITIONS_MAX, NewTopic, create_topics
from tidelog.metadata.elections import elect_leaders
from tidelog.metadata.reassignment import REPLICAS_MAX, alter_reassignments
from tidelog.metadata.registration import fence_broker, unregister_broker
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.alter_partition_reassignments import ReassignablePartition, ReassignableTopic
from tidelog.wire.messages.elect_leaders import TopicPartitions


class ClusterController:
    """The link to a controller that decides on a `JournalLife`. The node has followed each decision."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.life = JournalLife(elr=True, min_insync_replicas="1")
        self.life.start(1, 2, 3)
        topics = [NewTopic("t", assignments=[(0, (1, 2)), (1, (2, 3))]), NewTopic("u", assignments=[(0, (3,))])]
        self.life.decide(create_topics(self.life.image, topics, self.life.config, self.life.new_id))
        node.cache.image = self.life.image
        node.services.controller = cast(Any, self)

    def fence(self, broker_id: int) -> None:
        incarnation = self.life.image.brokers[broker_id].incarnation
        self.decide(fence_broker(self.life.image, broker_id, incarnation, self.life.config))

    def decide(self, decided: Any) -> link.Answer[Any]:
        try:
            reply = self.life.decide(decided)
        except ApiError as error:
            return link.Answer(None, error.code, error.message)
        self.node.cache.image = self.life.image
        return link.Answer(reply)

    async def elect_leaders(self, request: link.ElectLeaders) -> link.Answer[Any]:
        return self.decide(elect_leaders(self.life.image, request.election_type, request.partitions, self.life.config))

    async def alter_reassignments(self, request: link.AlterReassignments) -> link.Answer[Any]:
        allow = request.allow_factor_change
        return self.decide(
            alter_reassignments(self.life.image, request.reassignments, self.life.config, allow_factor_change=allow)
        )

    async def catch_up(self, request: link.CatchUp) -> link.Answer[Any]:
        return link.Answer(None)

    async def unregister_broker(self, request: link.UnregisterBroker) -> link.Answer[Any]:
        return self.decide(unregister_broker(self.life.image, request.broker_id, self.life.config))


def elections(answer: Any) -> list[tuple[str, list[tuple[int, ErrorCode]]]]:
    return [
        (topic.topic, [(p.partition_id, ErrorCode(p.error_code)) for p in topic.partition_result])
        for topic in answer.replica_election_results
    ]


async def reassign(node: Node, *partitions: tuple[str, int, list[int] | None], version: int = 1, **fields: Any) -> Any:
    """Send one topic entry for each partition, and return the answer."""
    topics = [
        ReassignableTopic(name=topic, partitions=[ReassignablePartition(partition_index=number, replicas=replicas)])
        for topic, number, replicas in partitions
    ]
    return await node.call("AlterPartitionReassignments", version, topics=topics, **fields)


def errors(answer: Any) -> list[ErrorCode]:
    return [ErrorCode(p.error_code) for topic in answer.responses for p in topic.partitions]


def test_an_election_gives_a_partition_back_to_its_preferred_leader() -> None:
    async def scenario(node: Node) -> None:
        cluster = ClusterController(node)
        cluster.fence(1)
        assert cluster.life.image.topics["t"].partitions[0].leader == 2
        preferred = [TopicPartitions(topic="t", partitions=[0, 1])]
        answer = await node.call("ElectLeaders", 2, topic_partitions=preferred)
        unavailable, not_needed = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELECTION_NOT_NEEDED
        assert elections(answer) == [("t", [(0, unavailable), (1, not_needed)])]

    with_node(scenario)


def test_an_election_of_all_partitions_lists_all_topics_and_the_partitions_that_needed_one() -> None:
    async def scenario(node: Node) -> None:
        cluster = ClusterController(node)
        cluster.fence(3)
        answer = await node.call("ElectLeaders", 1, election_type=1, topic_partitions=None)
        assert elections(answer) == [("t", []), ("u", [(0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)])]
        cluster.life.start(3)
        node.cache.image = cluster.life.image
        answer = await node.call("ElectLeaders", 2, topic_partitions=None)
        assert elections(answer) == [("t", []), ("u", [])]

    with_node(scenario)


def test_a_request_names_topics_more_than_once() -> None:
    async def scenario(node: Node) -> None:
        ClusterController(node)
        named = [
            TopicPartitions(topic="t", partitions=[0, 0]),
            TopicPartitions(topic="nope", partitions=[]),
            TopicPartitions(topic="t", partitions=[7]),
        ]
        answer = await node.call("ElectLeaders", 0, topic_partitions=named)
        not_needed, unknown = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert elections(answer) == [("t", [(0, not_needed), (0, not_needed)]), ("nope", []), ("t", [(7, unknown)])]

    with_node(scenario)


def test_a_reassignment_is_listed_until_it_is_cancelled() -> None:
    async def scenario(node: Node) -> None:
        ClusterController(node)
        answer = await reassign(node, ("t", 0, [3, 1]), ("t", 1, [2, 3]))
        assert errors(answer) == [ErrorCode.NONE, ErrorCode.NONE]
        ongoing = (await node.call("ListPartitionReassignments", 0, topics=None)).topics
        (partition,) = ongoing[0].partitions
        assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == ([3, 1, 2], [3], [2])
        answer = await reassign(node, ("t", 0, None), ("t", 1, None))
        assert errors(answer) == [ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
        assert (await node.call("ListPartitionReassignments", 0, topics=None)).topics == []

    with_node(scenario)


def test_the_number_of_replicas_can_be_protected() -> None:
    async def scenario(node: Node) -> None:
        ClusterController(node)
        answer = await reassign(
            node, ("t", 0, [3]), ("t", 0, [3, 2, 1]), ("t", 0, [3, 2]), allow_replication_factor_change=False
        )
        wrong = ErrorCode.INVALID_REPLICATION_FACTOR
        assert errors(answer) == [wrong, wrong, ErrorCode.NONE]
        assert not answer.allow_replication_factor_change
        answer = await reassign(node, ("t", 0, [3]), version=0)
        assert errors(answer) == [ErrorCode.NONE]

    with_node(scenario)


def test_long_requests_are_refused() -> None:
    async def scenario(node: Node) -> None:
        ClusterController(node)
        answer = await reassign(node, ("t", 0, [1] * (REPLICAS_MAX + 5)), ("t", 0, [3, 2]))
        assert errors(answer) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NONE]
        numbers = list(range(NAMED_PARTITIONS_MAX))
        named = [TopicPartitions(topic="t", partitions=numbers), TopicPartitions(topic="u", partitions=[0])]
        refused = ErrorCode.POLICY_VIOLATION
        for version, error in ((0, ErrorCode.NONE), (1, refused), (2, refused)):
            answer = await node.call("ElectLeaders", version, topic_partitions=named)
            assert answer.error_code == error
            assert elections(answer) == [("t", [(number, refused) for number in numbers]), ("u", [(0, refused)])]
        partitions = [ReassignablePartition(partition_index=number) for number in numbers]
        topics = [ReassignableTopic(name="t", partitions=partitions), ReassignableTopic("u", partitions[:1])]
        answer = await node.call("AlterPartitionReassignments", 1, topics=topics)
        assert (answer.error_code, answer.responses) == (ErrorCode.POLICY_VIOLATION, [])

    with_node(scenario)


def test_an_unregistered_broker_remains_a_replica() -> None:
    async def scenario(node: Node) -> None:
        cluster = ClusterController(node)
        answer = await node.call("UnregisterBroker", 0, broker_id=3)
        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, "")
        assert sorted(cluster.life.image.brokers) == [1, 2]
        state = cluster.life.image.topics["t"].partitions[1]
        assert (state.leader, state.replicas, state.isr) == (2, (2, 3), (2,))
        answer = await node.call("UnregisterBroker", 0, broker_id=3)
        assert answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED

    with_node(scenario)


def test_the_only_broker_cannot_be_unregistered() -> None:
    async def scenario(node: Node) -> None:
        answer = await node.call("UnregisterBroker", 0, broker_id=node.config.node_id)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "cannot be unregistered" in answer.error_message

    with_node(scenario)
