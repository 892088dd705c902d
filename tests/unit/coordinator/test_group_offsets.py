from classic_world import TOPIC_ID, WALL_MS, World

from tidelog.coordinator.group.state import GroupState
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.wire.messages.group_records import OffsetCommitValue

MINUTE_MS = 60_000


def subscription(*topics: str, version: int = 1) -> bytes:
    return version.to_bytes(2, "big") + ConsumerProtocolSubscription(list(topics)).encode(version)


def committed(world: World, group: str = "g", topic: str = "t") -> dict[int, int]:
    durable = world.core.durable.by_id.get(group)
    return {} if durable is None else {p: value.offset for p, value in durable.offsets.get(topic, {}).items()}


def test_a_commit_writes_what_kafka_writes() -> None:
    world = World()
    assert world.commit((0, 5, "note"), (1, 6, "")) == [ErrorCode.NONE, ErrorCode.NONE]
    assert world.core.durable.by_id["g"].offsets["t"] == {
        0: OffsetCommitValue(5, 4, "note", WALL_MS, -1, TOPIC_ID),
        1: OffsetCommitValue(6, 4, "", WALL_MS, -1, TOPIC_ID),
    }


def test_what_is_replayed_live_is_what_a_load_reads() -> None:
    world = World()
    world.commit((0, 5, "note"), retention_ms=1000)
    world.commit((1, 5, "é"))
    world.stable()
    for record in world.records:
        again = world.core.decode(*record.encode())
        assert again is not None
        assert again.value == record.value


def test_a_retention_for_ever_is_the_end_of_time() -> None:
    world = World()
    assert world.commit((0, 5, ""), retention_ms=(1 << 63) - 1) == [ErrorCode.NONE]
    assert world.core.durable.by_id["g"].offsets["t"][0].expire_timestamp == (1 << 63) - 1
    assert all(record.encode() for record in world.records)


def test_long_metadata_is_refused_alone() -> None:
    world = World(offset_metadata_max=10)
    codes = world.commit((0, 1, "x" * 10), (1, 1, "x" * 11), (2, 1, "é" * 10))
    assert codes == [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert committed(world) == {0: 1, 2: 1}


def test_metadata_is_measured_as_java_does() -> None:
    world = World(offset_metadata_max=10)
    assert world.commit((0, 1, "\U0001f600" * 5)) == [ErrorCode.NONE]
    assert world.commit((0, 1, "\U0001f600" * 6)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]


def test_a_commit_that_no_batch_can_hold_is_refused_whole() -> None:
    world = World(record_bytes_max=5000)
    assert world.commit(*((p, 1, "x" * 1000) for p in range(6))) == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * 6
    assert world.commit(*((p, 1, "x" * 1000) for p in range(4))) == [ErrorCode.NONE] * 4
    assert committed(world) == dict.fromkeys(range(4), 1)


def test_the_bytes_of_long_names_count_for_the_limit() -> None:
    """A group id of characters that UTF-8 writes with four bytes each."""
    group, offsets = "\U0001f600" * 50, [(p, 1, "") for p in range(9)]
    world = World()
    assert world.commit(*offsets, group=group) == [ErrorCode.NONE] * 9
    encoded = [record.encode() for record in world.records]
    tight = World(record_bytes_max=sum(len(key) + len(value) for key, value in encoded))
    assert tight.commit(*offsets, group=group) == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * 9


def test_members_must_be_of_this_generation() -> None:
    world = World()
    a, _ = world.stable()
    assert world.refusal(member_id=a, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert world.refusal(member_id="zz", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.refusal(member_id=a, instance="i", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.refusal() is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit((0, 1, ""), member_id=a, generation=1) == [ErrorCode.NONE]


def test_a_commit_renews_the_session() -> None:
    world = World()
    a, b = world.stable()
    world.wait(900)
    world.commit((0, 1, ""), member_id=a, generation=1)
    world.heartbeat(b, 1)
    world.wait(900)
    assert world.heartbeat(a, 1) == ErrorCode.NONE


def test_a_commit_between_join_and_sync_is_to_be_tried_again() -> None:
    world = World()
    a, b = world.stable()
    world.join(a)
    assert world.commit((0, 1, ""), member_id=b, generation=1) == [ErrorCode.NONE]
    world.join(b)
    assert world.refusal(member_id=a, generation=2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_generation_of_a_group_that_does_not_exist() -> None:
    world = World()
    assert world.refusal(member_id="m", generation=1, version=8) is ErrorCode.ILLEGAL_GENERATION
    assert world.refusal(member_id="m", generation=1, version=9) is ErrorCode.GROUP_ID_NOT_FOUND
    world.commit((0, 1, ""))
    assert world.refusal(member_id="m", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_a_simple_consumer_expire_each_by_its_own_time() -> None:
    world = World(offsets_retention_ms=10 * MINUTE_MS)
    world.commit((0, 1, ""))
    world.wait(MINUTE_MS)
    world.commit((1, 1, ""))
    world.wait(9 * MINUTE_MS - 1)
    world.sweep()
    assert committed(world) == {0: 1, 1: 1}
    world.wait(1)
    world.sweep()
    assert committed(world) == {1: 1}
    world.wait(MINUTE_MS)
    world.sweep()
    assert world.core.durable.by_id == {}


def test_a_retention_that_the_client_asked_for_counts_more() -> None:
    world = World(offsets_retention_ms=MINUTE_MS)
    world.commit((0, 1, ""), retention_ms=5 * MINUTE_MS)
    world.wait(5 * MINUTE_MS - 1)
    world.sweep()
    assert committed(world) == {0: 1}
    world.wait(1)
    world.sweep()
    assert committed(world) == {}


def test_members_keep_their_offsets_and_an_empty_group_keeps_them_from_then_on() -> None:
    world = World(offsets_retention_ms=MINUTE_MS)
    (a,) = world.stable(1)
    world.commit((0, 1, ""), member_id=a, generation=1)
    for _ in range(200):
        world.wait(900)
        world.heartbeat(a, 1)
    world.sweep()
    assert committed(world) == {0: 1}, "nobody knows what a member reads that does not say"
    world.leave((a, None))
    world.wait(MINUTE_MS - 1)
    world.sweep()
    assert committed(world) == {0: 1}
    world.wait(1)
    world.sweep()
    assert world.core.durable.by_id == {}
    assert world.core.groups == {}


def test_an_empty_group_counts_from_its_last_record_after_a_load() -> None:
    before = World(offsets_retention_ms=MINUTE_MS)
    (a,) = before.stable(1)
    before.commit((0, 1, ""), member_id=a, generation=1)
    before.wait(900)
    before.heartbeat(a, 1)
    before.leave((a, None))
    after = World(offsets_retention_ms=MINUTE_MS)
    after.core.durable = before.core.durable
    after.time_ms = before.time_ms
    after.apply(after.core.loaded(after.now))
    after.wait(MINUTE_MS - 1)
    after.sweep()
    assert committed(after) == {0: 1}
    after.wait(1)
    after.sweep()
    assert committed(after) == {}


def test_a_stable_group_forgets_topics_that_nobody_reads_any_more() -> None:
    world = World(offsets_retention_ms=MINUTE_MS)
    join = world.join(protocols=[("range", subscription("t"))], session_ms=10 * MINUTE_MS)
    world.wait(300)
    a = join.only.member_id
    world.sync(a, 1)
    world.commit((0, 1, ""), member_id=a, generation=1)
    world.commit((0, 1, ""), member_id=a, generation=1, topic="old")
    world.wait(2 * MINUTE_MS)
    assert world.group.state is GroupState.STABLE
    world.sweep()
    assert committed(world) == {0: 1}
    assert committed(world, topic="old") == {}


def test_a_subscription_that_cannot_be_read_keeps_everything() -> None:
    for metadata in (b"", b"\0", b"\0\0\0\0\0\5", b"\xff\xff\0\0\0\0", subscription("t")[:-3]):
        world = World(offsets_retention_ms=MINUTE_MS)
        join = world.join(protocols=[("range", metadata)], session_ms=10 * MINUTE_MS)
        world.wait(300)
        world.sync(join.only.member_id, 1)
        world.commit((0, 1, ""), member_id=join.only.member_id, generation=1)
        world.wait(2 * MINUTE_MS)
        world.sweep()
        assert committed(world) == {0: 1}


def test_a_later_version_of_the_subscription_is_read() -> None:
    world = World(offsets_retention_ms=MINUTE_MS)
    later = b"\0\x09" + subscription("t", version=3)[2:]
    join = world.join(protocols=[("range", later)], session_ms=10 * MINUTE_MS)
    world.wait(300)
    world.sync(join.only.member_id, 1)
    world.commit((0, 1, ""), member_id=join.only.member_id, generation=1, topic="old")
    world.wait(2 * MINUTE_MS)
    world.sweep()
    assert committed(world, topic="old") == {}


def test_a_group_with_neither_members_nor_offsets_goes() -> None:
    world = World()
    (a,) = world.stable(1)
    world.sweep()
    assert "g" in world.core.groups
    world.leave((a, None))
    world.sweep()
    assert world.core.durable.by_id == {}
    assert world.records[-1].value is None


def test_tombstones_come_in_batches() -> None:
    world = World(offsets_retention_ms=MINUTE_MS)
    world.commit(*((partition, 1, "") for partition in range(1200)))
    world.wait(MINUTE_MS)
    sizes = []
    for decision in world.core.sweep(world.core.group_ids(), world.now):
        world.apply(decision)
        sizes.append(len(decision.records))
    assert sizes == [500, 500, 201], "the last with the group's own end"
    assert world.core.durable.by_id == {}


def test_offsets_of_a_deleted_topic_are_forgotten() -> None:
    world = World()
    world.commit((0, 1, ""), (1, 1, ""))
    world.commit((0, 1, ""), topic="kept")
    world.commit((0, 1, ""), group="h")
    for decision in world.core.forget_topics({"t": None, "never": None}, world.now):
        world.apply(decision)
    assert committed(world) == {}
    assert committed(world, topic="kept") == {0: 1}
    assert "h" not in world.core.durable.by_id


def test_a_deleted_topic_costs_few_batches_however_many_groups_read_it() -> None:
    world = World()
    for number in range(1100):
        world.commit((0, 1, ""), group=f"group-{number}")
    sizes = []
    for decision in world.core.forget_topics({"t": None}, world.now):
        world.apply(decision)
        sizes.append(len(decision.records))
    assert sizes == [500, 500, 100]
    assert world.core.durable.by_id == {}


def test_a_soft_group_without_a_record_is_dropped_when_it_is_empty() -> None:
    world = World()
    world.commit((0, 1, ""))
    pending = world.join(version=4)
    assert pending.error == ErrorCode.MEMBER_ID_REQUIRED
    for decision in world.core.forget_topics({"t": None}, world.now):
        world.apply(decision)
    assert world.core.durable.by_id == {}
    world.sweep()
    assert world.core.groups == {}
