"""DescribeCluster. The expectations are Kafka 4.3.1's answers."""

import pytest

from metadata_harness.controlled import Node, with_node

NOT_ASKED = -(1 << 31)


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("asked", [False, True])
def test_the_cluster(version: int, asked: bool) -> None:
    async def scenario(node: Node) -> None:
        answer = await node.call("DescribeCluster", version, include_cluster_authorized_operations=asked)
        assert (answer.error_code, answer.error_message, answer.endpoint_type) == (0, None, 1)
        assert (answer.cluster_id, answer.controller_id) == (node.image.cluster_id, 1)
        (broker,) = answer.brokers
        assert (broker.broker_id, broker.host, broker.port, broker.rack) == (1, "127.0.0.1", 9092, "r1")
        assert broker.is_fenced is False
        assert answer.cluster_authorized_operations == (8096 if asked else NOT_ASKED)

    with_node(scenario, broker_rack="r1")


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (0, 115), (3, 115), (-1, 115)])
def test_endpoints_that_are_not_here(endpoint_type: int, code: int) -> None:
    async def scenario(node: Node) -> None:
        answer = await node.call("DescribeCluster", 1, endpoint_type=endpoint_type)
        assert (answer.error_code, answer.endpoint_type) == (code, 1)
        assert answer.error_message
        assert (answer.brokers, answer.cluster_id, answer.controller_id) == ([], "", -1)

    with_node(scenario)
