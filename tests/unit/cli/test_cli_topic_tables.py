"""The JSON of `tidelog topic describe`."""

from tidelog.cli.cluster import Offsets, PartitionState, TopicState
from tidelog.cli.topic_tables import topic_json


def test_a_partition_is_offline_without_a_leader_and_not_because_its_offsets_could_not_be_read() -> None:
    partitions = [PartitionState(number, leader, [1], [1]) for number, leader in enumerate((1, 1, -1))]
    topic = TopicState("t", "id", False, partitions)
    parts = topic_json(topic, {("t", 0): Offsets(3, 7)})["partitions"]
    assert [part["offline"] for part in parts] == [False, False, True]
    assert [(part.get("first_offset"), part.get("next_offset")) for part in parts] == [
        (3, 7),
        (None, None),
        (None, None),
    ]
