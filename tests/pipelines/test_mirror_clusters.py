"""What a mirror does with two clusters, without Spark: topics, settings, offsets and groups."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tidelog.client.blocking import Client
from tidelog.model.ids import TopicPartition as Partition
from tidelog.pipelines import mirror_topics
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.mirror_cluster import MirrorCluster
from tidelog.pipelines.mirror_groups import ACTIVE, MOVED, UNCHANGED, WAITING, MirrorGroups, MovedOffset
from tidelog.pipelines.mirror_offsets import Run, entries_of, segments_of
from tidelog.pipelines.mirror_store import MirrorStore, Plan, Position
from tidelog.pipelines.mirror_topics import MirrorTopics
from tidelog.testing import Broker
from tidelog.wire.records import Record, encode_batch

LIMIT_S = 30.0
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "2"}


class Clusters(NamedTuple):
    source: str
    target: str
    source_cluster: MirrorCluster
    target_cluster: MirrorCluster


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with (
        Broker(settings=SETTINGS) as source,
        Broker(settings=SETTINGS) as target,
        Client(source.bootstrap) as source_client,
        Client(target.bootstrap) as target_client,
    ):
        yield Clusters(source.bootstrap, target.bootstrap, MirrorCluster(source_client), MirrorCluster(target_client))


def create(bootstrap: str, name: str, partitions: int = 1, **settings: str) -> None:
    config = {key.replace("_", "."): value for key, value in settings.items()}
    new = NewTopic(name, partitions, 1, config=config)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new])[name].result(LIMIT_S)


def settings_of(bootstrap: str, topic: str) -> dict[str, str]:
    """The settings that are set on the topic."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entries = admin.describe_configs([resource])[resource].result(LIMIT_S)
    return {name: entry.value for name, entry in entries.items() if entry.source == 1}


def alter(bootstrap: str, topic: str, **settings: str | None) -> None:
    entries = [
        ConfigEntry(
            key.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE,
        )
        for key, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)


def transaction(bootstrap: str, topic: str, values: list[str], *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"writes-{topic}"})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    if commit:
        producer.commit_transaction(LIMIT_S)
    else:
        producer.flush(LIMIT_S)
        producer.abort_transaction(LIMIT_S)


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def committed(bootstrap: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    [position] = consumer.committed([TopicPartition(topic, 0)], LIMIT_S)
    consumer.close()
    return int(position.offset)


def copy(clusters: Clusters, store: MirrorStore, topic: str, *, aborted_first: int = 0) -> None:
    """Copy what is new in partition 0, as a micro-batch does."""
    tp = Partition(topic, 0)
    offsets = store.offsets.get(tp)
    begin = offsets.source_end if offsets else 0
    assert begin is not None
    end = clusters.source_cluster.ends([tp])[tp]
    target_begin = clusters.target_cluster.ends([tp])[tp]
    if aborted_first:
        transaction(clusters.target, topic, ["never seen"] * aborted_first, commit=False)
    values = [str(record.value, "utf-8") for record in clusters.source_cluster.records(tp, begin, end) if record.value]
    transaction(clusters.target, topic, values, commit=True)
    target_end = clusters.target_cluster.ends([tp])[tp]
    segments = segments_of(
        clusters.source_cluster.runs(tp, begin, end), clusters.target_cluster.runs(tp, target_begin, target_end)
    )
    store.save([(tp, entry) for entry in entries_of(segments, target_end)], Position("query", 0))


def mover(clusters: Clusters, store: MirrorStore, groups: set[str]) -> MirrorGroups:
    return MirrorGroups(
        clusters.source_cluster, clusters.target_cluster, store, lambda names: groups & set(names), prefix=""
    )


def outcome(moved: list[MovedOffset]) -> list[tuple[int, int | None, str]]:
    return [(each.source_offset, each.target_offset, each.outcome) for each in moved]


def values_from(cluster: MirrorCluster, topic: str, offset: int) -> list[bytes | None]:
    tp = Partition(topic, 0)
    return [record.value for record in cluster.records(tp, offset, cluster.ends([tp])[tp])]


def test_a_group_continues_with_the_next_record(clusters: Clusters) -> None:
    """Whatever offset it has, with transactions and aborted records in both clusters."""
    topic = "translated"
    create(clusters.source, topic)
    create(clusters.target, topic)
    store = MirrorStore(clusters.target_cluster, topic)
    store.load(1)
    for part in range(3):
        transaction(clusters.source, topic, [f"aborted {part}"] * 2, commit=False)
        transaction(clusters.source, topic, [f"{part} {n}" for n in range(4)], commit=True)
        copy(clusters, store, topic, aborted_first=part)
    end = clusters.source_cluster.ends([Partition(topic, 0)])[Partition(topic, 0)]
    assert end > 12
    for offset in range(end + 1):
        group = f"translated-{offset}"
        commit(clusters.source, group, topic, offset)
        assert [each.outcome for each in mover(clusters, store, {group}).move({topic: 1})] == [MOVED]
        rest = values_from(clusters.target_cluster, topic, committed(clusters.target, group, topic))
        assert rest == values_from(clusters.source_cluster, topic, offset)
    again = MirrorStore(clusters.target_cluster, topic)
    again.load(1)
    assert again.position == Position("query", 0)
    tp = Partition(topic, 0)
    assert [again.offsets[tp].translate(n) for n in range(end)] == [store.offsets[tp].translate(n) for n in range(end)]


def test_a_group_waits_for_records_before_its_offset(clusters: Clusters) -> None:
    topic = "waiting"
    create(clusters.source, topic)
    create(clusters.target, topic)
    store = MirrorStore(clusters.target_cluster, topic)
    store.load(1)
    commit(clusters.source, topic, topic, 0)
    groups = mover(clusters, store, {topic})
    assert outcome(groups.move({topic: 1})) == [(0, 0, MOVED)]
    transaction(clusters.source, topic, ["a", "b", "c"], commit=True)
    for offset in (1, 3, 4):
        commit(clusters.source, topic, topic, offset)
        assert outcome(groups.move({topic: 1})) == [(offset, None, WAITING)]
    copy(clusters, store, topic)
    assert outcome(groups.move({topic: 1})) == [(4, 4, MOVED)]
    assert outcome(groups.move({topic: 1})) == [(4, 4, UNCHANGED)]
    assert groups.move({}) == []  # the topic is not mirrored


def test_a_group_that_reads_the_target_is_not_set_back_or_disturbed(clusters: Clusters) -> None:
    topic = "active"
    create(clusters.source, topic)
    create(clusters.target, topic)
    store = MirrorStore(clusters.target_cluster, topic)
    store.load(1)
    transaction(clusters.source, topic, ["a", "b", "c"], commit=True)
    copy(clusters, store, topic)
    groups = mover(clusters, store, {topic})
    commit(clusters.source, topic, topic, 1)
    consumer = Consumer(
        {
            "bootstrap.servers": clusters.target,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(LIMIT_S)
    assert message is not None
    assert message.value() == b"a"
    assert outcome(groups.move({topic: 1})) == [(1, 1, ACTIVE)]
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    consumer.close()
    assert outcome(groups.move({topic: 1})) == [(1, 1, UNCHANGED)]
    assert committed(clusters.target, topic, topic) == 3


def test_topics_are_created_and_follow_their_source(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_topics, "SETTINGS_EVERY_S", 0.0)
    topic = "followed"
    create(clusters.source, topic, 2, retention_ms="86400000", min_insync_replicas="1", cleanup_policy="compact")
    topics = MirrorTopics(clusters.source_cluster, clusters.target_cluster, prefix="copy.", replicas=1)
    topics.follow({topic: 2})
    assert clusters.target_cluster.partition_counts()["copy.followed"] == 2
    expected = {"retention.ms": "86400000", "cleanup.policy": "compact"}
    assert settings_of(clusters.target, "copy.followed") == expected

    alter(clusters.source, topic, retention_ms=None, segment_bytes="1048576")
    alter(clusters.target, "copy.followed", min_insync_replicas="1")
    admin = AdminClient({"bootstrap.servers": clusters.source})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(LIMIT_S)
    topics.follow({topic: 5})
    assert clusters.target_cluster.partition_counts()["copy.followed"] == 5
    assert settings_of(clusters.target, "copy.followed") == {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "min.insync.replicas": "1",
    }


def test_a_refused_setting_does_not_hide_the_others(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = "refused"
    create(clusters.source, topic, retention_ms="1000")
    settings = clusters.source_cluster.settings([topic])
    settings[topic]["no.such.setting"] = mirror_topics.Setting("7", True)
    monkeypatch.setattr(clusters.source_cluster, "settings", lambda _: settings)
    topics = MirrorTopics(clusters.source_cluster, clusters.target_cluster, prefix="", replicas=1)
    topics.follow({topic: 1})
    assert settings_of(clusters.target, topic) == {"retention.ms": "1000"}
    [(refused, reason)] = topics.refused.items()
    assert refused == (topic, "no.such.setting", "7")
    assert "no.such.setting" in reason


def test_copied_records_keep_their_timestamps_in_a_topic_with_append_time(clusters: Clusters) -> None:
    create(clusters.source, "stamped", message_timestamp_type="LogAppendTime")
    create(clusters.target, "stamped", message_timestamp_type="LogAppendTime")
    MirrorTopics(clusters.source_cluster, clusters.target_cluster, prefix="", replicas=1).follow({"stamped": 1})
    assert clusters.target_cluster.settings(["stamped"])["stamped"]["message.timestamp.type"].value == "CreateTime"


def test_runs_are_the_offsets_of_committed_records(clusters: Clusters) -> None:
    topic = "runs"
    create(clusters.source, topic)
    tp = Partition(topic, 0)
    clusters.source_cluster.client.produce({tp: encode_batch([Record(value=b"x")] * 5)})
    transaction(clusters.source, topic, ["aborted"] * 3, commit=False)
    transaction(clusters.source, topic, ["committed"] * 2, commit=True)
    end = clusters.source_cluster.ends([tp])[tp]
    assert clusters.source_cluster.runs(tp, 0, end) == [Run(0, 5), Run(9, 2)]
    assert clusters.source_cluster.runs(tp, 2, 10) == [Run(2, 3), Run(9, 1)]
    assert not clusters.source_cluster.has_records(tp, 5, 9)
    assert clusters.source_cluster.has_records(tp, 5, 10)


def test_a_plan_is_stored_and_foreign_records_are_refused(clusters: Clusters) -> None:
    store = MirrorStore(clusters.target_cluster, "planned")
    store.load(1)
    plan = Plan(Position("query", 7), {Partition("a", 0): 5, Partition("a.b", 12): 0})
    store.save_plan(plan)
    again = MirrorStore(clusters.target_cluster, "planned")
    again.load(1)
    assert again.plan == plan
    assert again.position is None
    foreign = encode_batch([Record(b'["entry","a"]', b"7")])
    clusters.target_cluster.client.produce({Partition(store.topic, 0): foreign})
    with pytest.raises(PipelineError, match=r"topic mirror-offsets\.planned holds a record that no mirror wrote"):
        MirrorStore(clusters.target_cluster, "planned").load(1)
