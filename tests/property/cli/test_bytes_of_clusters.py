"""Commands on clusters show brokers, topics and answers with any bytes, and all topics beside one that is refused."""

import base64
import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_harness import ENCODINGS, answering, tidelog
from cli_harness.names import check_table
from tidelog.wire.message import Message
from tidelog.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tidelog.wire.messages.describe_quorum import DescribeQuorumResponse
from tidelog.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponseBroker

EXAMPLES = int(os.environ.get("TIDELOG_EXAMPLES", "12"))
any_bytes = st.binary(max_size=12) | st.sampled_from([b"\xff", b"a\0b", b"\xed\xa0\x80", b"\x1b[2J", b"", b"\xc2\xb2"])
any_text = any_bytes.map(lambda data: data.decode("utf-8", "surrogateescape"))
int32 = st.integers(-1, 3) | st.integers(-(1 << 31), (1 << 31) - 1)
codes = st.sampled_from([0, 0, 0, 3, 29, 9999])
numbers = st.lists(int32, max_size=3)


def named(document: dict[str, Any], field: str) -> str | None:
    encoded = document.get(f"{field}_base64")
    if encoded is None:
        return document[field]
    return base64.b64decode(encoded).decode("utf-8", "surrogateescape")


partitions = st.builds(
    DescribeTopicPartitionsResponsePartition,
    error_code=codes,
    partition_index=int32,
    leader_id=int32,
    replica_nodes=numbers,
    isr_nodes=numbers,
    eligible_leader_replicas=numbers | st.none(),
    offline_replicas=numbers,
)
topics = st.builds(
    DescribeTopicPartitionsResponseTopic, error_code=codes, name=any_text, partitions=st.lists(partitions, max_size=3)
)
brokers = st.tuples(st.integers(2, 5), any_text, int32, any_text | st.none(), st.booleans())
moves = st.builds(
    OngoingTopicReassignment,
    name=any_text,
    partitions=st.lists(
        st.builds(
            OngoingPartitionReassignment,
            partition_index=int32,
            replicas=numbers,
            adding_replicas=numbers,
            removing_replicas=numbers,
        ),
        max_size=2,
    ),
)


@given(
    any_text,
    st.lists(brokers, max_size=3, unique_by=lambda broker: broker[0]),
    st.lists(topics, max_size=4, unique_by=lambda topic: topic.name),
    st.lists(moves, max_size=2, unique_by=lambda topic: topic.name),
    st.tuples(codes, codes, codes),
    st.sampled_from(["1", "2", "", "²", "9" * 5000]) | any_text,
    st.sampled_from(ENCODINGS),
)
@settings(max_examples=4 * EXAMPLES, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_answers_of_any_bytes(
    cluster_id: str,
    others: list[tuple[int, str, int, str | None, bool]],
    described: list[DescribeTopicPartitionsResponseTopic],
    moving: list[OngoingTopicReassignment],
    refusals: tuple[int, int, int],
    min_isr: str,
    encoding: str,
) -> None:
    quorum_code, configs_code, moves_code = refusals

    def configs(request: Any) -> Message:
        values = [DescribeConfigsResourceResult(name="min.insync.replicas", value=min_isr)]
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(configs_code, None, resource.resource_type, resource.resource_name, values)
                for resource in request.resources
            ]
        )

    answers = {
        "Metadata": lambda _: MetadataResponse(
            brokers=[MetadataResponseBroker(1, broker.host, broker.port)], controller_id=1
        ),
        "DescribeCluster": lambda _: DescribeClusterResponse(
            cluster_id=cluster_id,
            brokers=[
                DescribeClusterBroker(1, broker.host, broker.port, None, False),
                *(DescribeClusterBroker(*other) for other in others),
            ],
        ),
        "DescribeQuorum": lambda _: DescribeQuorumResponse(error_code=quorum_code),
        "DescribeTopicPartitions": lambda _: DescribeTopicPartitionsResponse(topics=described),
        "DescribeConfigs": configs,
        "ListPartitionReassignments": lambda _: ListPartitionReassignmentsResponse(
            error_code=moves_code, topics=moving
        ),
    }
    with answering(answers) as broker:
        where = ("-b", broker.bootstrap)
        ran = tidelog("cluster", "status", "--json", *where, encoding=encoding, code=None)
        assert ran.code in (0, 3)
        state = ran.json()
        assert [named(each, "rack") for each in state["brokers"]] == [
            None,
            *(rack or None for number, _, _, rack, _ in sorted(others)),
        ]
        sound = [topic for topic in described if not topic.error_code]
        assert state["partitions"] == sum(len(topic.partitions) for topic in sound)
        refused = [topic for topic in described if topic.error_code not in (0, 3)]
        of_settings = {topic.name for topic in sound if topic.partitions} if configs_code not in (0, 3) else ()
        assert len(state["problems"]) == len(refused) + len(of_settings) + bool(moves_code)
        assert ran.code == 3 or not refused
        for command in (["status"], ["status", "--all"], ["brokers"]):
            check_table(tidelog("cluster", *command, *where, encoding=encoding, code=None))
        brokers_only = tidelog("cluster", "brokers", "--json", *where, encoding=encoding)
        assert len(brokers_only.json()) == 1 + len(others)
        check_table(tidelog("cluster", "reassign", *where, encoding=encoding, code=None))
