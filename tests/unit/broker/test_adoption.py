"""A broker that starts on directories that Apache Kafka wrote."""

import shutil
from pathlib import Path

import pytest

from metadata_harness.builders import ids, settings, topic_id
from tidelog.broker.adoption import (
    Adoption,
    AdoptionError,
    FoundPartitions,
    Identity,
    adopt,
    read_all_partitions,
    read_identities,
    read_identity,
    read_partitions,
    refuse_foreign,
    use_node_id,
)
from tidelog.config.broker_config import ConfigError
from tidelog.metadata.image import EMPTY_IMAGE, ImageBuilder
from tidelog.metadata.records import ProducerIdsAllocated, TopicCreated
from tidelog.model.ids import TopicPartition, uuid_from_text, uuid_text
from tidelog.runtime.disk import LocalDisk

GOLDEN = Path(__file__).parents[2] / "golden/adoption"


@pytest.fixture
def disk() -> LocalDisk:
    return LocalDisk()


def copied(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / name, tmp_path / name))


def topics(adoption: Adoption) -> dict[str, TopicCreated]:
    assert all(isinstance(record, TopicCreated) for record in adoption.records[:-1])
    return {record.name: record for record in adoption.records if isinstance(record, TopicCreated)}


def test_a_directory_of_a_kraft_broker(disk: LocalDisk, tmp_path: Path) -> None:
    directory = str(copied("broker-A", tmp_path))
    assert read_identity(disk, directory) == Identity("PCbusMznQZi20FQlE8ke6g", 1)
    found = read_partitions(disk, directory)
    assert sorted(found.partitions) == [
        ("__consumer_offsets", 15),
        ("__consumer_offsets", 38),
        ("__consumer_offsets", 40),
        ("__consumer_offsets", 43),
        ("belajarkafka", 0),
    ]
    assert len(found.checkpointed) == 51
    adoption = adopt(found, settings(node_id="1"), ids(), directory)
    made = topics(adoption)
    assert list(made) == ["__consumer_offsets", "belajarkafka"]
    offsets, user = made["__consumer_offsets"], made["belajarkafka"]
    assert uuid_text(user.topic_id) == "u4xCnM-dRfid3gtXjfwyxQ"
    assert uuid_text(offsets.topic_id) == "L4_FyI0VQPmo1SQDSQau_g"
    assert len(offsets.partitions) == 50
    assert [p.replicas for p in user.partitions] == [(1,)]
    assert user.partitions[0].leader_epoch == found.partitions[TopicPartition("belajarkafka", 0)].last_leader_epoch + 1
    assert user.config == {"retention.ms": "-1"}
    assert offsets.config["cleanup.policy"] == "compact"
    assert "retention.ms" not in offsets.config
    assert adoption.notices[0].startswith(
        "topic __consumer_offsets: id L4_FyI0VQPmo1SQDSQau_g, 50 partitions of which 46 had no directory and are "
        "empty; settings are the defaults and cleanup.policy=compact"
    )
    assert adoption.notices[1] == (
        "topic belajarkafka: id u4xCnM-dRfid3gtXjfwyxQ, 1 partitions; settings are the defaults and retention.ms=-1"
    )
    assert "of Apache Kafka. Do not start a Kafka broker in it again" in adoption.notices[2]


def test_a_directory_of_a_zookeeper_broker(disk: LocalDisk, tmp_path: Path) -> None:
    directory = str(copied("broker-B", tmp_path))
    identity = read_identity(disk, directory)
    assert identity == Identity("P4mWrUMKRvm3AylnZYNBaQ", 0)
    config = settings()
    use_node_id(identity, config, directory)
    assert config.node_id == 0
    made = topics(adopt(read_partitions(disk, directory), config, ids(), directory))
    assert {name: len(topic.partitions) for name, topic in made.items()} == {"__consumer_offsets": 50, "cities": 1}
    assert made["cities"].topic_id == uuid_from_text("Yjwa-XTYSF28JSz9pdcuyw")
    assert [p.replicas for p in made["cities"].partitions] == [(0,)]
    image = ImageBuilder(EMPTY_IMAGE).apply(list(made.values())).build()
    assert image.partition_count == 51


def test_several_directories_are_taken_over_together(disk: LocalDisk, tmp_path: Path) -> None:
    """Of one node; each has some of the partitions."""
    first = copied("broker-A", tmp_path)
    second = tmp_path / "second"
    second.mkdir()
    for name in ("__consumer_offsets-40", "belajarkafka-0"):
        (first / name).rename(second / name)
    shutil.copy(first / "meta.properties", second)
    paths = [str(first), str(second)]
    assert read_identities(disk, paths) == Identity("PCbusMznQZi20FQlE8ke6g", 1)
    found = read_all_partitions(disk, paths)
    assert sorted(found.partitions)[-2:] == [("__consumer_offsets", 43), ("belajarkafka", 0)]
    assert list(topics(adopt(found, settings(node_id="1"), ids(), "both"))) == ["__consumer_offsets", "belajarkafka"]


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ("version=1\ncluster.id=another\nnode.id=1\n", "belongs to cluster another, but .* to cluster PCbus"),
        ("version=1\ncluster.id=PCbusMznQZi20FQlE8ke6g\nnode.id=2\n", "belongs to node 2, but .* to node 1"),
    ],
)
def test_directories_that_do_not_belong_together(disk: LocalDisk, tmp_path: Path, other: str, line: str) -> None:
    first = copied("broker-A", tmp_path)
    second = tmp_path / "second"
    second.mkdir()
    (second / "meta.properties").write_text(other)
    new = tmp_path / "new"
    new.mkdir()
    with pytest.raises(AdoptionError, match=f"^{second} {line}".replace(".* to", f"{first} to")):
        read_identities(disk, [str(new), str(first), str(second)])


def test_new_producers_are_not_taken_for_those_that_the_logs_remember(disk: LocalDisk, tmp_path: Path) -> None:
    make_partition(tmp_path, "t-0")
    found = read_partitions(disk, str(tmp_path))
    first_ids: list[int] = []
    for start in (0x0000 << 112, 0xFFFF << 112):
        last = adopt(found, settings(), ids(start), "/data").records[-1]
        assert isinstance(last, ProducerIdsAllocated)
        first_ids.append(last.next_id)
    assert first_ids == [1 << 40, 1 << 56]
    assert first_ids[1] + 10**9 < 1 << 63


def test_nothing_is_written(disk: LocalDisk, tmp_path: Path) -> None:
    directory = copied("broker-A", tmp_path)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    read_identity(disk, str(directory))
    adopt(read_partitions(disk, str(directory)), settings(), ids(), str(directory))
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_a_node_number_that_contradicts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"node\.id is 5, but /data belongs to node 1"):
        use_node_id(Identity("c", 1), settings(node_id="5"), "/data")
    agreed = settings(node_id="1")
    use_node_id(Identity("c", 1), agreed, "/data")
    new = settings(node_id="5")
    use_node_id(Identity(None, None), new, "/data")
    assert (agreed.node_id, new.node_id) == (1, 5)


def test_a_new_directory(disk: LocalDisk, tmp_path: Path) -> None:
    assert read_identity(disk, str(tmp_path)) == Identity(None, None)
    assert adopt(read_partitions(disk, str(tmp_path)), settings(), ids(), str(tmp_path)) == Adoption([], [])


def make_partition(directory: Path, name: str, topic: int | None = 1, epochs: str | None = None) -> Path:
    partition = directory / name
    partition.mkdir()
    (partition / f"{0:020d}.log").touch()
    if topic is not None:
        (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuid_text(topic_id(topic))}")
    if epochs is not None:
        (partition / "leader-epoch-checkpoint").write_text(epochs)
    return partition


def test_what_is_no_partition_is_left_alone(disk: LocalDisk, tmp_path: Path) -> None:
    make_partition(tmp_path, "a-b-1")
    for name in (
        "__cluster_metadata-0",
        "lost+found",
        "no number-x",
        "-5",
        "b-0.5e1f-delete",
        "c-0.77-stray",
        "d-0.9-future",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "e-0").write_text("a file")
    found = read_partitions(disk, str(tmp_path))
    assert list(found.partitions) == [("a-b", 1)]
    assert found.ignored_directories == ["b-0.5e1f-delete", "c-0.77-stray", "d-0.9-future"]
    adoption = adopt(found, settings(), ids(), "/data")
    assert [len(topic.partitions) for topic in topics(adoption).values()] == [2]
    assert "nothing from these directories: b-0.5e1f-delete, c-0.77-stray, d-0.9-future" in adoption.notices


def test_partitions_that_only_checkpoints_know_are_made(disk: LocalDisk, tmp_path: Path) -> None:
    make_partition(tmp_path, "t-0")
    (tmp_path / "replication-offset-checkpoint").write_text("0\n3\nt 4 7\nu 1 0\n__cluster_metadata 0 9\n")
    made = topics(adopt(read_partitions(disk, str(tmp_path)), settings(), ids(), "/data"))
    assert {name: len(topic.partitions) for name, topic in made.items()} == {"t": 5, "u": 2}
    assert (made["t"].topic_id, made["u"].topic_id) == (topic_id(1), topic_id(100))


def test_topics_from_before_ids_get_new_ones(disk: LocalDisk, tmp_path: Path) -> None:
    make_partition(tmp_path, "t-0", topic=None)
    make_partition(tmp_path, "u-0", topic=None)
    make_partition(tmp_path, "u-1", topic=7)
    made = topics(adopt(read_partitions(disk, str(tmp_path)), settings(), ids(), "/data"))
    assert {name: topic.topic_id for name, topic in made.items()} == {"t": topic_id(100), "u": topic_id(7)}


def test_leader_epochs_go_on(disk: LocalDisk, tmp_path: Path) -> None:
    make_partition(tmp_path, "t-0", epochs="0\n2\n3 0\n7 120\n")
    make_partition(tmp_path, "t-1", epochs="0\n0\n")
    make_partition(tmp_path, "t-2")
    make_partition(tmp_path, "t-3", epochs="")
    made = topics(adopt(read_partitions(disk, str(tmp_path)), settings(), ids(), "/data"))
    assert [p.leader_epoch for p in made["t"].partitions] == [8, 0, 0, 0]


def test_two_topics_in_one_are_refused(disk: LocalDisk, tmp_path: Path) -> None:
    make_partition(tmp_path, "t-0", topic=1)
    make_partition(tmp_path, "t-1", topic=2)
    with pytest.raises(AdoptionError, match="/data: the partitions of topic t have different ids"):
        adopt(read_partitions(disk, str(tmp_path)), settings(), ids(), "/data")


def test_a_partition_number_beyond_all_reason_is_refused() -> None:
    found = FoundPartitions({}, [TopicPartition("t", 10**12)], [])
    with pytest.raises(AdoptionError, match="partition 1000000000000 of topic t"):
        adopt(found, settings(), ids(), "/data")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t-0/partition.metadata", "version: 0\ntopic_id: too-short"),
        ("t-0/partition.metadata", "garbage"),
        ("t-0/leader-epoch-checkpoint", "0\n2\n1 0\n"),
        ("t-0/leader-epoch-checkpoint", "9\n0\n"),
        ("t-0/leader-epoch-checkpoint", "0\nx\n"),
        ("recovery-point-offset-checkpoint", "0\n1\nt zero 0\n"),
        ("recovery-point-offset-checkpoint", "0\n1\nt 0\n"),
        ("log-start-offset-checkpoint", "\xff"),
    ],
)
def test_a_damaged_file_is_named(disk: LocalDisk, tmp_path: Path, name: str, content: str) -> None:
    make_partition(tmp_path, "t-0")
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(AdoptionError) as caught:
        read_partitions(disk, str(tmp_path))
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"node.id=one", b"\xff", b"a=\\u1"])
def test_a_damaged_identity_is_named(disk: LocalDisk, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "meta.properties").write_bytes(content)
    with pytest.raises(AdoptionError, match=r"meta\.properties"):
        read_identity(disk, str(tmp_path))


def test_a_name_alone_makes_no_partition(disk: LocalDisk, tmp_path: Path) -> None:
    (tmp_path / "dbus-1").mkdir()
    (tmp_path / "dbus-1" / "system.conf").write_text("<busconfig/>")
    make_partition(tmp_path, "t-0")
    assert set(read_partitions(disk, str(tmp_path)).partitions) == {TopicPartition("t", 0)}


@pytest.mark.parametrize("name", ["dbus-1/system.conf", "readme.txt", "kafka-logs-1/meta.properties", "lib-1"])
def test_a_directory_of_somebody_else_is_refused(disk: LocalDisk, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    else:
        path.mkdir()
    with pytest.raises(AdoptionError, match=rf"{tmp_path} is not empty.*{name.split('/')[0]}.*--data"):
        refuse_foreign(disk, [str(tmp_path)])
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "name",
    [
        *(".gitkeep", "lost+found/", "meta.properties", "metadata.sqlite", "t-0/", ""),
        *("meta.properties.tmp", "recovery-point-offset-checkpoint.tmp"),  # the first start was killed
    ],
)
def test_a_new_directory_and_one_of_a_broker_are_taken(disk: LocalDisk, tmp_path: Path, name: str) -> None:
    if name == "t-0/":
        make_partition(tmp_path, "t-0")
    elif name.endswith("/"):
        (tmp_path / name).mkdir()
    elif name:
        (tmp_path / name).write_text("")
    before = sorted(tmp_path.iterdir())
    refuse_foreign(disk, [str(tmp_path), str(tmp_path / "not-there")])
    assert sorted(tmp_path.iterdir()) == before
