"""What a mirror does with two clusters, without Spark: topics, settings, offsets and groups."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import MagicMock

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
from tidelog.client.errors import GaveUp
from tidelog.model.ids import TopicPartition as Partition
from tidelog.pipelines import mirror_topics, mirror_writer
from tidelog.pipelines.declarations import PipelineError, SinkContext, SourceContext, TemporaryError
from tidelog.pipelines.mirror_cluster import MirrorCluster
from tidelog.pipelines.mirror_groups import ACTIVE, MOVED, UNCHANGED, WAITING, MirrorGroups, MovedOffset
from tidelog.pipelines.mirror_offsets import Run, entries_of, segments_of
from tidelog.pipelines.mirror_store import MirrorStore, Plan, Position
from tidelog.pipelines.mirror_topics import MirrorTopics
from tidelog.pipelines.mirror_writer import MirrorWriter, starting_options
from tidelog.pipelines.mirrors import Mirror
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
    monkeypatch.setattr(mirror_topics, "COMPARED_EVERY_S", 0.0)
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


class Copier:
    """In place of Spark: copies partition 0 of a topic, exactly once by the number of the micro-batch."""

    def __init__(self, clusters: Clusters, topic: str) -> None:
        self.clusters = clusters
        self.partition = Partition(topic, 0)
        self.written: set[int] = set()
        self.begin = 0
        self.skipped = 0
        """Number of records that are compacted between the plan and the write."""

    def runs(self, _: object) -> dict[Partition, list[Run]]:
        end = self.clusters.source_cluster.ends([self.partition])[self.partition]
        return {self.partition: self.clusters.source_cluster.runs(self.partition, self.begin, end)}

    def write(self, _: object, batch_id: int) -> None:
        if batch_id in self.written:
            return
        end = self.clusters.source_cluster.ends([self.partition])[self.partition]
        records = list(self.clusters.source_cluster.records(self.partition, self.begin, end))[self.skipped :]
        values = [str(record.value, "utf-8") for record in records if record.value]
        transaction(self.clusters.target, self.partition.topic, values, commit=True)
        self.written.add(batch_id)


@pytest.fixture
def copier(clusters: Clusters, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Copier:
    topic = re.sub("[^a-z]+", "-", request.node.name).strip("-")
    create(clusters.source, topic)
    copier = Copier(clusters, topic)
    monkeypatch.setattr(mirror_writer, "kept_on_disk", nullcontext)
    monkeypatch.setattr(mirror_writer, "source_runs", copier.runs)
    monkeypatch.setattr(MirrorWriter, "_write_records", copier.write)
    return copier


def writer(copier: Copier, query: str = "query", groups: str | None = None, once: bool = False) -> MirrorWriter:
    topic = copier.partition.topic
    mirror = Mirror(topic, copier.clusters.source, re.escape(topic), copier.clusters.target, groups=groups, replicas=1)
    spark: Any = None
    return MirrorWriter(mirror, SinkContext(spark, copier.clusters.target, topic, query, "append", once))


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(LIMIT_S)


@pytest.mark.parametrize("is_created_again", [False, True])
@pytest.mark.parametrize("while_open", [False, True])
def test_a_deleted_topic_of_the_target_stops_the_mirror(
    copier: Copier, is_created_again: bool, while_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records would be missing for ever, and the groups would get offsets of the deleted topic."""
    monkeypatch.setattr(mirror_topics, "COMPARED_EVERY_S", 0.0)
    topic = copier.partition.topic
    transaction(copier.clusters.source, topic, ["a", "b", "c"], commit=True)
    opened = writer(copier)
    write_batch(opened, 0)
    copier.begin = 4
    transaction(copier.clusters.source, topic, ["d"], commit=True)
    delete(copier.clusters.target, topic)
    if is_created_again:
        create(copier.clusters.target, topic)
    try:
        place = rf"{topic}(-0 \(which now ends at 0, .*\))?"
        with pytest.raises(PipelineError, match=rf"{place} in the target, but they are not there"):
            write_batch(opened, 1) if while_open else writer(copier)
        assert (topic in copier.clusters.target_cluster.partition_counts()) == is_created_again
    finally:
        opened.close()
    assert 1 not in copier.written


def test_a_begin_that_stored_offsets_would_override_is_refused(copier: Copier) -> None:
    topic, clusters = copier.partition.topic, copier.clusters
    transaction(clusters.source, topic, ["a"], commit=True)
    declared = Mirror(topic, clusters.source, re.escape(topic), clusters.target, replicas=1)
    refused = partial(starting_options, declared, clusters.target, "earliest", refuses_stored=True)
    assert refused() == {"startingOffsets": "earliest"}
    opened = writer(copier)
    write_batch(opened, 0)
    opened.close()
    with pytest.raises(
        PipelineError, match=f"mirror {topic} has copied records before, .*tidelog pipeline reset {topic}"
    ):
        refused()
    assert topic in starting_options(declared, clusters.target, "earliest")["startingOffsets"]


@pytest.mark.parametrize("has_started", [False, True])
@pytest.mark.parametrize("begin", [None, "earliest"])
def test_only_a_begin_of_a_new_query_is_checked(
    monkeypatch: pytest.MonkeyPatch, has_started: bool, begin: str | None
) -> None:
    """A query that has started continues from its checkpoint, and keeps the value of --from of its first run."""
    checked: list[bool] = []

    def options(*_: object, refuses_stored: bool) -> dict[str, str]:
        checked.append(refuses_stored)
        return {}

    monkeypatch.setattr(mirror_writer, "starting_options", options)
    declared = Mirror("shop", "127.0.0.1:1", "shop", "127.0.0.1:2")
    declared.load(SourceContext(MagicMock(), "127.0.0.1:2", "shop", True, begin, has_started=has_started))
    assert checked == [begin is not None and not has_started]


@pytest.mark.parametrize("once", [False, True])
def test_a_failed_last_move_of_groups_is_a_failure_of_a_run_with_once(
    copier: Copier, once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise GaveUp("no answer")

    monkeypatch.setattr(MirrorGroups, "move", fail)
    opened = writer(copier, groups=".*", once=once)
    expected = pytest.raises(TemporaryError, match=r"the groups were not moved a last time, .* \(no answer\)")
    with expected if once else nullcontext():
        opened.close()
    opened.close()


def write_batch(opened: MirrorWriter, number: int) -> None:
    batch: Any = None
    opened.write(batch, number)


@pytest.mark.parametrize("step", ["save_plan", "_write", "save"])
def test_offsets_are_complete_after_a_crash(step: str, copier: Copier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before or after the plan, the records or the offsets are stored; the driver starts again."""
    transaction(copier.clusters.source, copier.partition.topic, ["a", "b", "c"], commit=True)
    for is_before in (True, False):
        opened = writer(copier)
        original = getattr(MirrorStore, step)

        def crash(
            store: MirrorStore, *arguments: object, original: Any = original, is_before: bool = is_before
        ) -> None:
            if not is_before:
                original(store, *arguments)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(MirrorStore, step, crash)
            with pytest.raises(KeyboardInterrupt):
                write_batch(opened, 0)
        opened.close()
        opened.close()
    opened = writer(copier)
    write_batch(opened, 0)
    opened.close()
    check_translations(copier, [0, 1, 2, 3])


def check_translations(copier: Copier, expected: list[int]) -> None:
    store = MirrorStore(copier.clusters.target_cluster, copier.partition.topic)
    store.load(1)
    offsets = store.offsets[copier.partition]
    read_before = []
    for offset in range(len(expected)):
        translated = offsets.translate(offset)
        assert translated is not None
        tp = copier.partition
        rest = values_from(copier.clusters.target_cluster, tp.topic, translated)
        read_before.append(len(values_from(copier.clusters.target_cluster, tp.topic, 0)) - len(rest))
    assert read_before == expected


def test_records_that_are_compacted_before_the_write_do_not_stop_the_mirror(copier: Copier) -> None:
    """Offsets within such a micro-batch go back to its beginning; later ones are exact again."""
    topic = copier.partition.topic
    transaction(copier.clusters.source, topic, ["a", "b", "c"], commit=True)
    copier.skipped = 1
    opened = writer(copier)
    write_batch(opened, 0)
    copier.skipped, copier.begin = 0, 3
    transaction(copier.clusters.source, topic, ["d", "e"], commit=True)
    write_batch(opened, 1)
    opened.close()
    # The source has a to c at 0 to 2, a marker at 3, d and e at 4 and 5. The target has b, c, d, e.
    check_translations(copier, [0, 0, 0, 2, 2, 3, 4])


def test_another_producer_in_the_target_is_reported(copier: Copier) -> None:
    topic = copier.partition.topic
    transaction(copier.clusters.source, topic, ["a"], commit=True)
    opened = writer(copier)
    original = copier.write
    transaction(copier.clusters.target, topic, ["before the plan"], commit=True)
    with pytest.MonkeyPatch.context() as patch:

        def write_more(_: MirrorWriter, batch: object, batch_id: int) -> None:
            original(batch, batch_id)
            transaction(copier.clusters.target, topic, ["foreign"], commit=True)

        patch.setattr(MirrorWriter, "_write_records", write_more)
        with pytest.raises(PipelineError, match="received 2 records from offset 2 on, but only 1 were copied"):
            write_batch(opened, 0)
    opened.close()


def test_records_of_a_lost_query_are_reported(copier: Copier, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction(copier.clusters.source, copier.partition.topic, ["a"], commit=True)
    opened = writer(copier)
    with monkeypatch.context() as patch:
        patch.setattr(MirrorStore, "save", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            write_batch(opened, 0)
    opened.close()
    other = writer(copier, query="other")
    with pytest.raises(PipelineError, match=r"may have records of micro-batch 0 of an earlier query \(query\)"):
        write_batch(other, 0)
    other.close()


def test_a_cluster_is_not_copied_onto_itself(clusters: Clusters) -> None:
    mirror = Mirror("self", clusters.source, "self-.*", groups=None)
    spark: Any = None
    with pytest.raises(PipelineError, match="are the same cluster, whose topics would be copied onto themselves"):
        MirrorWriter(mirror, SinkContext(spark, clusters.source, "self", "query", "append"))


def test_a_plan_is_stored_and_foreign_records_are_refused(clusters: Clusters) -> None:
    store = MirrorStore(clusters.target_cluster, "planned")
    store.load(1)
    ends = {Partition("a", 0): 5, Partition("a.b", 12): 0}
    plan = Plan(Position("query", 7), ends, {Partition("a", 0): [Run(3, 2), Run(9, 1)], Partition("a.b", 12): []})
    store.save_plan(plan)
    again = MirrorStore(clusters.target_cluster, "planned")
    again.load(1)
    assert again.plan == plan
    assert again.position is None
    document = b'{"query":"query","batch":8,"partitions":[["a",0,5,[[3,2]]]]}'  # as earlier versions stored every plan
    earlier = encode_batch([Record(b'["plan"]', document)])
    clusters.target_cluster.client.produce({Partition(store.topic, 0): earlier})
    again.load(1)
    assert again.plan == Plan(Position("query", 8), {Partition("a", 0): 5}, {Partition("a", 0): [Run(3, 2)]})
    foreign = encode_batch([Record(b'["entry","a"]', b"7")])
    clusters.target_cluster.client.produce({Partition(store.topic, 0): foreign})
    with pytest.raises(PipelineError, match=r"topic mirror-offsets\.planned holds a record that no mirror wrote"):
        MirrorStore(clusters.target_cluster, "planned").load(1)


def scattered(batch: int, runs: int) -> Plan:
    """A plan as of a transactional topic with a marker after each record, and of many other partitions."""
    first = 10**12 + batch
    partitions = {Partition("scattered", 0): [Run(first + 2 * n + n % 7 * 10**9, 1) for n in range(runs)]}
    partitions |= {Partition("t" * 200, n): [Run(n, 1)] for n in range(5000)}
    return Plan(Position("query", batch), dict.fromkeys(partitions, 10**13), partitions)


def test_a_large_plan_is_stored_in_several_records(clusters: Clusters) -> None:
    """One record would be larger than max.message.bytes of the topic."""
    store = MirrorStore(clusters.target_cluster, "scattered")
    store.load(1)
    plan = scattered(0, 500_000)
    store.save_plan(plan)
    loaded = MirrorStore(clusters.target_cluster, "scattered")
    loaded.load(1)
    assert loaded.plan == plan


@pytest.mark.parametrize("requests", range(4))
def test_a_plan_counts_when_all_of_its_records_are_stored(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    """A driver that ends between two records of a plan leaves the earlier plan."""
    name = f"parts-{requests}"
    store = MirrorStore(clusters.target_cluster, name)
    store.load(1)
    earlier, later = scattered(0, 30_000), scattered(1, 60_000)
    store.save_plan(earlier)
    real, sent = MirrorStore._send, []

    def send(self: MirrorStore, records: list[Record]) -> None:
        if len(sent) == requests:
            raise InterruptedError("the driver ends")
        sent.append(records)
        real(self, records)

    with monkeypatch.context() as patch:
        patch.setattr(MirrorStore, "_send", send)
        with pytest.raises(InterruptedError):
            store.save_plan(later)
    restarted = MirrorStore(clusters.target_cluster, name)
    restarted.load(1)
    assert restarted.plan == earlier
    shorter = scattered(1, 45_000)
    restarted.save_plan(shorter)
    restarted.save_plan(scattered(2, 10))
    restarted.save_plan(small := Plan(Position("query", 3), {}, {}))
    again = MirrorStore(clusters.target_cluster, name)
    again.load(1)
    assert again.plan == small
    tp = Partition(store.topic, 0)
    end = clusters.target_cluster.ends([tp])[tp]
    values = {record.key: record.value for record in clusters.target_cluster.records(tp, 0, end)}
    assert {key for key, value in values.items() if value is not None} == {b'["plan"]'}, "compaction removes all parts"
