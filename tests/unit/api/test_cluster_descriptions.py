"""Answers that describe fenced brokers, eligible replicas and reassignments. Only a cluster has these."""

from metadata_harness.controlled import Node, with_node
from metadata_harness.journal_life import JournalLife
from tidelog.config.endpoints import Endpoint
from tidelog.metadata.controller import NewTopic, create_topics
from tidelog.metadata.elections import elect_leaderless
from tidelog.metadata.reassignment import Reassignment, alter_reassignments
from tidelog.metadata.registration import fence_broker
from tidelog.wire.messages.describe_topic_partitions import TopicRequest
from tidelog.wire.messages.list_partition_reassignments import ListPartitionReassignmentsTopics


def cluster() -> JournalLife:
    """Return a cluster in which broker 3 is fenced, u has no leader, and t-0 is being reassigned."""
    life = JournalLife(elr=True, min_insync_replicas="2")
    life.start(1, 2, 3)
    topics = [NewTopic("t", assignments=[(0, (1, 3)), (1, (1, 2))]), NewTopic("u", assignments=[(0, (3,))])]
    life.decide(create_topics(life.image, topics, life.config, life.new_id))
    life.decide(fence_broker(life.image, 3, life.image.brokers[3].incarnation, life.config))
    life.decide(alter_reassignments(life.image, [Reassignment("t", 0, (2, 3))], life.config))
    life.decide(elect_leaderless(life.image, life.config))
    return life


def test_fenced_brokers_are_described_on_request_only() -> None:
    async def scenario(node: Node) -> None:
        node.cache.image = cluster().image
        answer = await node.call("DescribeCluster", 2)
        assert [broker.broker_id for broker in answer.brokers] == [1, 2]
        answer = await node.call("DescribeCluster", 2, include_fenced_brokers=True)
        assert [(broker.broker_id, broker.is_fenced) for broker in answer.brokers] == [
            (1, False),
            (2, False),
            (3, True),
        ]
        metadata = await node.call("Metadata", 12, topics=None)
        assert [broker.node_id for broker in metadata.brokers] == [1, 2]
        partitions = {(t.name, p.partition_index): p for t in metadata.topics for p in t.partitions}
        assert [partitions[key].offline_replicas for key in (("t", 0), ("t", 1), ("u", 0))] == [[3], [], [3]]
        assert (partitions["u", 0].leader_id, partitions["u", 0].error_code) == (-1, 5)

    with_node(scenario)


def test_the_first_version_of_metadata_leaves_out_offline_replicas() -> None:
    async def scenario(node: Node) -> None:
        node.cache.image = cluster().image
        metadata = await node.call("Metadata", 0, topics=[])
        assert {
            (t.name, p.partition_index): (p.error_code, p.leader_id, p.replica_nodes, p.isr_nodes)
            for t in metadata.topics
            for p in t.partitions
        } == {("t", 0): (9, 1, [2, 1], [1]), ("t", 1): (0, 1, [1, 2], [1, 2]), ("u", 0): (5, -1, [], [])}

    with_node(scenario)


def test_brokers_have_the_addresses_of_the_listener_that_the_client_uses() -> None:
    async def scenario(node: Node) -> None:
        life = cluster()
        endpoints = [Endpoint("INSIDE", "inside", 1), Endpoint("OUTSIDE", "outside", 2)]
        life.start(4, endpoints=endpoints)
        node.cache.image = life.image
        for listener, expected in (("INSIDE", ("inside", 1)), ("OUTSIDE", ("outside", 2)), ("OTHER", ("inside", 1))):
            node.listener = listener
            described = await node.call("DescribeCluster", 1)
            metadata = await node.call("Metadata", 12, topics=None)
            assert [(b.host, b.port) for b in described.brokers if b.broker_id == 4] == [expected]
            assert [(b.host, b.port) for b in metadata.brokers if b.node_id == 4] == [expected]

    with_node(scenario)


def test_eligible_replicas_are_those_of_the_image() -> None:
    async def scenario(node: Node) -> None:
        node.cache.image = cluster().image
        topics = [TopicRequest(name="t"), TopicRequest(name="u")]
        answer = await node.call("DescribeTopicPartitions", 0, topics=topics, response_partition_limit=10)
        assert [
            (p.leader_id, p.isr_nodes, p.eligible_leader_replicas, p.last_known_elr, p.error_code)
            for t in answer.topics
            for p in t.partitions
        ] == [(1, [1], [3], [], 0), (1, [1, 2], [], [], 0), (-1, [], [3], [3], 0)]

    with_node(scenario)


def test_reassignments_are_listed() -> None:
    async def scenario(node: Node) -> None:
        node.cache.image = cluster().image
        ongoing = [("t", [(0, [2, 3, 1], [2], [1])])]
        for indexes, expected in [(None, ongoing), ([0, 1, 0, 9], ongoing), ([1], [])]:
            topics = None
            if indexes is not None:
                names = ["t", "nope", "t"]
                topics = [ListPartitionReassignmentsTopics(name=n, partition_indexes=indexes) for n in names]
            answer = await node.call("ListPartitionReassignments", 0, topics=topics)
            assert (answer.error_code, answer.error_message) == (0, None)
            assert [
                (
                    t.name,
                    [(p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas) for p in t.partitions],
                )
                for t in answer.topics
            ] == expected

    with_node(scenario)
