"""The description of a consumer group for ConsumerGroupDescribe."""

from typing import TYPE_CHECKING

from tidelog.coordinator.consumer.member import NO_TARGET, Member, Owned, Target
from tidelog.coordinator.consumer.state import ConsumerGroup
from tidelog.model.ids import TopicId
from tidelog.wire.messages.consumer_group_describe import Assignment, DescribedGroup, TopicPartitions
from tidelog.wire.messages.consumer_group_describe import Member as DescribedMember

if TYPE_CHECKING:
    from tidelog.metadata.image import MetadataImage

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Values of the field `member_type`."""


def describe(group: ConsumerGroup, default_assignor: str, image: "MetadataImage") -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor(default_assignor),
        members=[_member(group, member, image) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: Member, image: "MetadataImage") -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(_current_partitions(member.owned, member.revoking), image),
        target_assignment=_assignment(group.targets.get(member.member_id, NO_TARGET), image),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _current_partitions(owned: Owned, revoking: Owned) -> Target:
    """Return the partitions that the member has, including those that it must give up."""
    return {
        topic_id: tuple(sorted((*owned.get(topic_id, ()), *revoking.get(topic_id, ()))))
        for topic_id in {**owned, **revoking}
    }


def _assignment(target: Target, image: "MetadataImage") -> Assignment:
    """Convert an assignment to its form in the response, and add the topic names. Deleted topics are omitted."""
    assigned = [
        TopicPartitions(topic_id, topic.name, list(partitions))
        for topic_id, partitions in target.items()
        if (topic := image.topics_by_id.get(TopicId(topic_id))) is not None
    ]
    return Assignment(sorted(assigned, key=lambda topic: topic.topic_name))
