"""The metadata image: the effect of each record, sharing between images, replay and snapshots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata_harness.builders import broker, image, topic, topic_id
from tidelog.config.endpoints import Endpoint
from tidelog.metadata.image import (
    EMPTY_IMAGE,
    INTERNAL_TOPICS,
    ImageBuilder,
    MetadataImage,
    TopicImage,
    snapshot,
)
from tidelog.metadata.records import (
    BrokerConfigChanged,
    BrokerRegistered,
    BrokerStateChanged,
    BrokerUnregistered,
    ClientMetricsConfigChanged,
    ClientQuotaChanged,
    ControllerElected,
    DirectoryId,
    FeatureLevelChanged,
    GroupConfigChanged,
    JournalRecord,
    LeadershipRenewed,
    PartitionChanged,
    PartitionsAdded,
    PartitionState,
    PartitionStatesChanged,
    ProducerIdsAllocated,
    StateChange,
    TopicConfigChanged,
    TopicDeleted,
    decode,
    encode,
)


def contents(image: MetadataImage) -> object:
    """All that an image says, to compare by value."""
    return (
        image.cluster_id,
        image.controller_id,
        image.controller_epoch,
        image.brokers,
        {name: (t.topic_id, t.partitions, dict(t.config), t.internal) for name, t in image.topics.items()},
        {key: t.name for key, t in image.topics_by_id.items()},
        {name: dict(config) for name, config in image.broker_configs.items()},
        {name: dict(config) for name, config in image.group_configs.items()},
        {entity: dict(values) for entity, values in image.client_quotas.items()},
        {name: dict(config) for name, config in image.client_metrics_configs.items()},
        image.producer_ids_next,
        image.partition_count,
        dict(image.feature_levels),
    )


def after(before: MetadataImage, *records: JournalRecord) -> MetadataImage:
    return ImageBuilder(before).apply(records).build()


def test_clients_send_requests_for_the_controller_to_a_broker_that_is_alive() -> None:
    now = after(image(brokers=(1, 2, 3)), ControllerElected(1, 2))
    assert [now.reported_controller(node_id) for node_id in (1, 2, 3)] == [1, 2, 3]
    for fenced, expected in ((1, 2), (2, 3), (3, -1)):
        now = after(now, BrokerStateChanged(fenced, now.brokers[fenced].epoch, fenced=True))
        assert now.reported_controller(1) == expected
        assert now.reported_controller(3) == (3 if fenced < 3 else -1)


def test_topics_come_and_go() -> None:
    before = image(topic("a", 1), topic("b", 2, [(1,), (1,)]))
    assert list(before.topics) == ["a", "b"]
    assert before.topics_by_id[topic_id(2)] is before.topics["b"]
    assert before.partition_count == 3
    now = after(before, TopicDeleted(topic_id(2)))
    assert list(now.topics) == ["a"]
    assert list(now.topics_by_id) == [topic_id(1)]
    assert now.partition_count == 1
    assert now.position == before.position + 1
    assert list(before.topics) == ["a", "b"]


def test_unchanged_parts_are_shared() -> None:
    before = image(topic("a", 1), topic("b", 2), BrokerConfigChanged("", "log.retention.ms", "5"))
    now = after(before, TopicConfigChanged(topic_id(1), "retention.ms", "7"))
    assert now.topics["b"] is before.topics["b"]
    assert now.topics["a"] is not before.topics["a"]
    assert now.topics["a"].partitions is before.topics["a"].partitions
    assert now.broker_configs is before.broker_configs
    assert now.brokers is before.brokers
    unrelated = after(before, ProducerIdsAllocated(1, 1000))
    assert unrelated.topics is before.topics
    assert unrelated.topics_by_id is before.topics_by_id


def test_a_builder_that_goes_on_leaves_what_it_built_alone() -> None:
    builder = ImageBuilder(image(topic("a", 1)))
    first = builder.apply([topic("b", 2)]).build()
    second = builder.apply([topic("c", 3)]).build()
    assert list(first.topics) == ["a", "b"]
    assert list(second.topics) == ["a", "b", "c"]


def test_partitions_are_added_behind_the_others() -> None:
    now = after(image(topic("a", 1)), PartitionsAdded(topic_id(1), 1, ((1,), (1,))))
    assert now.topics["a"].partitions == (PartitionState(1, 0, (1,), (1,), 0),) * 3
    assert now.partition_count == 3


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (PartitionChanged(topic_id(1), 0, isr=(1,)), PartitionState(1, 0, (1, 2), (1,), 1)),
        (PartitionChanged(topic_id(1), 0, leader=2), PartitionState(2, 1, (1, 2), (1, 2), 1)),
        (PartitionChanged(topic_id(1), 0, leader=1), PartitionState(1, 1, (1, 2), (1, 2), 1)),
        (PartitionChanged(topic_id(1), 0, leader=-1, isr=(2,)), PartitionState(-1, 1, (1, 2), (2,), 1)),
        (PartitionChanged(topic_id(1), 0, replicas=(2, 3)), PartitionState(1, 0, (2, 3), (1, 2), 1)),
    ],
)
def test_a_leader_begins_a_leader_epoch_and_any_change_a_partition_epoch(
    change: PartitionChanged, state: PartitionState
) -> None:
    before = image(topic("a", 1, [(1, 2), (2, 1)]), brokers=[1, 2])
    now = after(before, change)
    assert now.topics["a"].partitions == (state, before.topics["a"].partitions[1])


def test_a_restarted_brokers_partitions_begin_new_leader_epochs() -> None:
    before = image(topic("a", 1, [(1, 2), (2, 1)]), topic("b", 2, [(2, 1)]), brokers=[1, 2])
    now = after(before, LeadershipRenewed(1))
    assert [p.leader_epoch for p in now.topics["a"].partitions] == [1, 0]
    assert [p.partition_epoch for p in now.topics["a"].partitions] == [1, 0]
    assert now.topics["b"] is before.topics["b"]


def test_many_changes_of_one_topic_are_part_of_the_image_that_is_built() -> None:
    before = image(topic("a", 1, [(1, 2)] * 3), topic("b", 2, [(1, 2)]), brokers=[1, 2])
    builder = ImageBuilder(before)
    change = StateChange({topic_id(1): (0, 2), topic_id(2): (0,)}, leader=2, isr=(2,), elr=(1,))
    builder.apply([PartitionStatesChanged((change,)), PartitionChanged(topic_id(1), 1, isr=(1,))])
    first = builder.build()
    changed = PartitionState(2, 1, (1, 2), (2,), 1, (1,))
    assert first.topics["a"].partitions == (changed, PartitionState(1, 0, (1, 2), (1,), 1), changed)
    assert first.topics["b"].partitions == (changed,)
    assert first.topics_by_id[topic_id(2)] is first.topics["b"]
    builder.apply([PartitionStatesChanged((StateChange({topic_id(1): (0,)}, recovery=1),)), TopicDeleted(topic_id(1))])
    assert list(builder.build().topics) == ["b"]
    assert first.topics["a"].partitions[0] == changed


def test_brokers_are_fenced_and_unregistered() -> None:
    before = image(brokers=[1, 2])
    fenced = after(before, BrokerStateChanged(1, 0, fenced=True))
    assert [fenced.is_active(number) for number in (1, 2, 3)] == [False, True, False]
    assert not after(before, BrokerStateChanged(1, 0, in_controlled_shutdown=True)).is_active(1)
    assert after(fenced, BrokerStateChanged(1, 0, fenced=False)).is_active(1)
    assert list(after(fenced, BrokerUnregistered(1, 0)).brokers) == [2]
    with pytest.raises(AssertionError):
        after(before, BrokerStateChanged(1, 7, fenced=True))


def test_settings_are_set_and_taken_back() -> None:
    now = image(topic("a", 1, retention_ms="5"))
    now = after(
        now, TopicConfigChanged(topic_id(1), "segment.ms", "7"), TopicConfigChanged(topic_id(1), "retention.ms", None)
    )
    assert now.topics["a"].config == {"segment.ms": "7"}
    now = after(now, BrokerConfigChanged("1", "a", "1"), BrokerConfigChanged("", "b", "2"))
    assert now.broker_configs == {"1": {"a": "1"}, "": {"b": "2"}}
    now = after(now, BrokerConfigChanged("1", "a", None))
    assert now.broker_configs == {"": {"b": "2"}}


def test_brokers_are_listed_by_their_numbers() -> None:
    now = after(image(brokers=[2]), broker(10), broker(1))
    assert list(now.brokers) == [1, 2, 10]
    moved = BrokerRegistered(2, 9, "again", (Endpoint("INSIDE", "i", 1), Endpoint("OUTSIDE", "o", 2)), "r")
    found = after(now, moved).brokers[2]
    assert (found.host, found.port, found.rack, found.epoch) == ("i", 1, "r", 9)
    assert found.endpoint("OUTSIDE").host == "o"
    assert found.endpoint("NOWHERE").host == "i"


def test_internal_topics() -> None:
    assert all(TopicImage(name, topic_id(1), (), {}).internal for name in INTERNAL_TOPICS)
    assert not TopicImage("__mine", topic_id(1), (), {}).internal


def test_topics_know_their_replication_factor() -> None:
    assert image(topic("a", 1, [(1, 2)]), brokers=[1, 2]).topics["a"].replication_factor == 2


# Histories: what was decided from an image can be replayed, at once or entry by entry, from the journal or a snapshot


@st.composite
def histories(draw: st.DrawFn) -> list[list[JournalRecord]]:
    """Entries that follow from each other."""
    entries: list[list[JournalRecord]] = [[broker(1), broker(2)]]
    partitions: dict[int, int] = {}
    for number in range(draw(st.integers(0, 25))):
        kind = draw(st.integers(0, 15))
        known = draw(st.sampled_from(sorted(partitions))) if partitions else None
        if kind <= 1 or known is None:
            replicas = draw(st.lists(st.sampled_from([(1,), (2,), (1, 2), (2, 1)]), min_size=1, max_size=3))
            entries.append(
                [topic(f"t{number}", number, replicas, **draw(st.sampled_from([{}, {"retention_ms": "5"}])))]
            )
            partitions[number] = len(replicas)
            continue
        change: JournalRecord
        if kind == 2:
            change = TopicDeleted(topic_id(known))
        elif kind == 3:
            change = PartitionsAdded(topic_id(known), partitions[known], ((1,),))
            partitions[known] += 1
        elif kind == 4:
            leader = draw(st.sampled_from([None, -1, 1, 2]))
            isr = draw(st.sampled_from([None, (1,), (2, 1)]))
            change = PartitionChanged(topic_id(known), draw(st.integers(0, partitions[known] - 1)), leader, isr)
        elif kind == 5:
            setting, value = draw(st.sampled_from(["a", "b"])), draw(st.sampled_from([None, "1", "2"]))
            change = TopicConfigChanged(topic_id(known), setting, value)
        elif kind == 6:
            change = BrokerConfigChanged(draw(st.sampled_from(["", "1"])), "c", draw(st.sampled_from([None, "1"])))
        elif kind == 7:
            change = LeadershipRenewed(draw(st.sampled_from([1, 2])))
        elif kind == 8:
            entity = draw(st.sampled_from([(("user", None),), (("client-id", "c"), ("user", "u"))]))
            change = ClientQuotaChanged(
                entity, draw(st.sampled_from(["a", "b"])), draw(st.sampled_from([None, 1.0, 2.5]))
            )
        elif kind == 9:
            change = GroupConfigChanged(
                draw(st.sampled_from(["g", "h"])), draw(st.sampled_from(["a", "b"])), draw(st.sampled_from([None, "1"]))
            )
        elif kind == 10:
            change = ClientMetricsConfigChanged(
                "m", draw(st.sampled_from(["a", "b"])), draw(st.sampled_from([None, "1"]))
            )
        elif kind == 11:
            level = draw(st.integers(0, 2))
            change = FeatureLevelChanged(draw(st.sampled_from(["f", "g"])), level)
        elif kind == 12:
            flags = st.sampled_from([None, True, False])
            change = BrokerStateChanged(draw(st.sampled_from([1, 2])), 0, draw(flags), draw(flags))
        elif kind == 13:
            change = BrokerRegistered(
                draw(st.sampled_from([1, 2])), 0, "run", (Endpoint("P", "h", 1),), None, draw(st.booleans()),
                boot_id="b", directories=(DirectoryId(bytes(16)),), features={"f": (0, 2)},
            )  # fmt: skip
        elif kind == 14:
            optional_lists = st.sampled_from([None, (), (1,), (2, 1)])
            changed_topics = draw(st.lists(st.sampled_from(sorted(partitions)), min_size=1, unique=True))
            half = StateChange(
                {topic_id(t): (0,) for t in changed_topics}, draw(st.sampled_from([None, -1, 2])),
                draw(optional_lists), None, draw(optional_lists), draw(optional_lists), recovery=1,
            )  # fmt: skip
            rest = {topic_id(t): tuple(range(1, partitions[t])) for t in changed_topics if partitions[t] > 1}
            entries.append([PartitionStatesChanged((half, StateChange(rest, adding=(2,), removing=(1,))))])
            # The same entry may have further records of these topics.
            change = TopicConfigChanged(topic_id(known), "a", "9")
            entries[-1].append(change)
            change = PartitionsAdded(topic_id(known), partitions[known], ((1, 2),), ((2,),))
            partitions[known] += 1
            entries[-1].append(change)
            continue
        else:
            change = ProducerIdsAllocated(1, 1000 * number)
        if kind == 2:
            del partitions[known]
        entries.append([change])
    return entries


@given(histories(), st.data())
def test_replay_gives_the_same_image_however_it_is_cut(entries: list[list[JournalRecord]], data: st.DataObject) -> None:
    live = EMPTY_IMAGE
    journal: list[bytes] = []
    for entry in entries:
        journal.append(encode(1, entry))
        live = ImageBuilder(live).apply(entry).build()
    run_all = ImageBuilder(EMPTY_IMAGE)
    for position, line in enumerate(journal):
        run_all.apply(decode(line, position).records)
    assert contents(run_all.build()) == contents(live)
    assert run_all.position == live.position == len(journal)

    cut = data.draw(st.integers(0, len(journal)))
    prefix = ImageBuilder(EMPTY_IMAGE)
    for position, line in enumerate(journal[:cut]):
        prefix.apply(decode(line, position).records)
    saved = encode(1, snapshot(prefix.build()))
    resumed = ImageBuilder(EMPTY_IMAGE).apply(decode(saved, cut).records)
    resumed.position = cut
    for position, line in enumerate(journal[cut:], cut):
        resumed.apply(decode(line, position).records)
    assert contents(resumed.build()) == contents(live)
    assert resumed.position == live.position
