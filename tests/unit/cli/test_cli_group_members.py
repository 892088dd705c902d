"""Which members of a group an error names."""

from tidelog.cli.groups import members_text, readers_of
from tidelog.client.groups import Group, Member
from tidelog.model.ids import TopicPartition


def group_of(**topics: str) -> Group:
    members = [
        Member(name, None, name, "/10.0.0.7", [TopicPartition(topic, 0)] if topic else [])
        for name, topic in topics.items()
    ]
    return Group("billing", "Stable", "classic", "consumer", "range", 1, members)


def test_only_members_that_read_a_topic_are_named() -> None:
    group = group_of(a="orders", b="payments", c="")
    assert members_text(readers_of(group, [("orders", 3)])) == "a@10.0.0.7 (orders 0)"


def test_members_whose_partitions_are_not_known_are_named_too() -> None:
    group = group_of(a="orders", b="payments")
    unknown = group.members[1]._replace(partitions=[], problem="its assignment cannot be decoded")
    group = group._replace(members=[group.members[0], unknown])
    assert members_text(readers_of(group, [("orders", 3)])) == "a@10.0.0.7 (orders 0), b@10.0.0.7 (?)"


def test_all_members_are_named_if_none_has_a_partition_of_the_topic() -> None:
    """A member may be subscribed to a topic of which it has no partition."""
    group = group_of(a="payments", b="")
    assert readers_of(group, [("orders", 3)]) == group
