"""Consumer groups as their members see them: sessions, revocation, limits, both protocols at once, restarts."""

import time
from typing import Any

import pytest

from consumer_harness.members import REBALANCE_MS, ClassicMember, ConsumerMember
from consumer_harness.stage import Stage, visible_state
from group_harness.invariants import check_core
from tidelog.coordinator.consumer.heartbeats import _reported_partitions
from tidelog.coordinator.consumer.member import MemberState
from tidelog.coordinator.consumer.records import PARTITION_METADATA, ConsumerRecord
from tidelog.coordinator.consumer.settings import SESSION_TIMEOUT_KEY, ConsumerSettings, MigrationPolicy
from tidelog.coordinator.consumer.state import ConsumerGroup, ConsumerGroupState
from tidelog.coordinator.group.offsets import OffsetCommit, OffsetToCommit
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state import GroupState
from tidelog.metadata.image import MetadataImage
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from tidelog.wire.messages.group_records import ConsumerGroupPartitionMetadataValue


def stage(topics: dict[str, int] | None = None, *, group_max_size: int = 1000, **consumer: Any) -> Stage:
    settings = ConsumerSettings(**{"assignment_interval_ms": 0, **consumer})
    return Stage(
        GroupSettings(initial_rebalance_delay_ms=0, group_max_size=group_max_size, consumer=settings),
        topics or {"t": 4},
    )


def group_of(on: Stage) -> ConsumerGroup:
    group = on.core.consumers.find("g")
    assert group is not None
    return group


def partitions(member: Any) -> list[int]:
    return sorted(partition for owned in member.owned.values() for partition in owned)


def beat_all(*members: Any, rounds: int = 4) -> None:
    for _ in range(rounds):
        for member in members:
            member.beat()
        members[0].stage.pass_time(0)


def consumers(on: Stage, count: int) -> list[ConsumerMember]:
    members = [ConsumerMember(on, "g", f"m{number}", ["t"]) for number in range(count)]
    beat_all(*members)
    return members


def test_a_silent_member_goes_when_its_session_ends() -> None:
    on = stage(session_timeout_ms=10_000)
    one, two = consumers(on, 2)
    on.pass_time(9_000)
    one.beat()
    on.pass_time(1_500)
    assert list(group_of(on).members) == ["m0"]
    beat_all(one)
    assert partitions(one) == [0, 1, 2, 3]
    assert isinstance(two.beat(), ApiError)
    assert two.error == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_keeps_what_it_shall_give_up_is_removed() -> None:
    on = stage()
    one = consumers(on, 1)[0]
    two = ConsumerMember(on, "g", "two", ["t"])
    two.beat()
    kept = {topic: set(p) for topic, p in one.owned.items()}
    for _ in range(REBALANCE_MS // 1000 - 1):
        one.owned = {topic: set(p) for topic, p in kept.items()}
        one.beat()
        on.pass_time(1000)
    assert group_of(on).members["m0"].state is MemberState.UNREVOKED
    two.beat()
    assert partitions(two) == []
    on.pass_time(2000)
    assert list(group_of(on).members) == ["two"]
    beat_all(two)
    assert partitions(two) == [0, 1, 2, 3]


def test_assignments_are_made_once_an_interval() -> None:
    on = stage(assignment_interval_ms=1000)
    one = consumers(on, 1)[0]
    two = ConsumerMember(on, "g", "two", ["t"])
    two.beat()
    assert group_of(on).state is ConsumerGroupState.ASSIGNING
    beat_all(one, two)
    assert partitions(two) == []
    on.pass_time(1000)
    beat_all(one, two)
    assert group_of(on).state is ConsumerGroupState.STABLE
    assert (len(partitions(one)), len(partitions(two))) == (2, 2)


def test_a_group_has_settings_of_its_own_within_the_brokers_limits() -> None:
    on = stage(limits={SESSION_TIMEOUT_KEY: (5000, 60_000)})
    old = on.image
    own = {"consumer.session.timeout.ms": "1000", "consumer.heartbeat.interval.ms": "700"}
    on.image = MetadataImage(topics=old.topics, topics_by_id=old.topics_by_id, group_configs={"g": own})
    one = ConsumerMember(on, "g", "m", ["t"])
    assert one.beat().heartbeat_interval_ms == 700
    on.pass_time(4900)
    assert "m" in group_of(on).members
    on.pass_time(200)
    assert "m" not in group_of(on).members


def test_a_full_group_takes_nobody_else() -> None:
    on = stage(max_size=2)
    one, _ = consumers(on, 2)
    answer = ConsumerMember(on, "g", "three", ["t"]).beat()
    assert isinstance(answer, ApiError)
    assert answer.code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not isinstance(one.beat(), ApiError)


def test_only_the_growth_of_a_subscription_counts_for_the_bound_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage({"t": 2, "u": 1})
    one, two = consumers(on, 2)
    monkeypatch.setattr("tidelog.coordinator.consumer.heartbeats.METADATA_BYTES_MAX", group_of(on).subscriptions_bytes)
    two.topics, two.sends_all_fields = ["u"], True
    assert not isinstance(two.beat(), ApiError), "the new subscription replaces one of the same size"
    two.topics, two.sends_all_fields = ["t", "u"], True
    answer = two.beat()
    assert isinstance(answer, ApiError)
    assert answer.code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not isinstance(one.beat(), ApiError)


def test_partitions_that_come_and_topics_that_go_are_assigned_at_the_next_heartbeat() -> None:
    on = stage({"t": 2, "u": 1})
    one = ConsumerMember(on, "g", "m", ["t", "u"])
    one.beat()
    on.change_topics({"t": 5})
    one.beat()
    assert partitions(one) == [0, 1], "what is gone is given up first"
    one.beat()
    assert partitions(one) == [0, 1, 2, 3, 4]
    assert on.image.topics.keys() == {"t"}
    assert len(one.owned) == 1


def test_a_static_member_is_back_before_its_session_ends_and_nothing_moves() -> None:
    on = stage(session_timeout_ms=10_000)
    one = ConsumerMember(on, "g", "m1", ["t"], "i")
    two = ConsumerMember(on, "g", "m2", ["t"], "j")
    beat_all(one, two)
    before = partitions(one)
    one.leave(-2)
    beat_all(two)
    assert len(partitions(two)) == 2
    epoch = group_of(on).epoch
    back = ConsumerMember(on, "g", "m3", ["t"], "i")
    back.beat()
    assert partitions(back) == before
    assert group_of(on).epoch == epoch
    back.leave(-2)
    on.pass_time(5_000)
    two.beat()
    on.pass_time(6_000)
    beat_all(two)
    assert partitions(two) == [0, 1, 2, 3]


def test_after_a_restart_members_go_on_and_the_silent_ones_go() -> None:
    on = stage(session_timeout_ms=10_000)
    one, _ = consumers(on, 2)
    before = visible_state(on.core.durable)
    on.restart()
    assert visible_state(on.core.durable) == before
    answer = one.beat()
    assert not isinstance(answer, ApiError)
    on.pass_time(6_000)
    one.beat()
    on.pass_time(6_000)
    beat_all(one)
    assert partitions(one) == [0, 1, 2, 3]
    check_core(on.core)


def test_classic_members_and_consumers_share_a_group() -> None:
    on = stage()
    classic = [ClassicMember(on, "g", ["t"], eager=eager) for eager in (True, False)]
    beat_all(*classic)
    assert on.core.groups["g"].state is GroupState.STABLE
    new = ConsumerMember(on, "g", "m", ["t"])
    beat_all(new, *classic, rounds=8)
    assert group_of(on).classic_count == 2
    assert sorted(len(partitions(member)) for member in (new, *classic)) == [1, 1, 2]
    assert group_of(on).state is ConsumerGroupState.STABLE
    assert [listed.group_type for listed in on.core.listing()] == ["consumer"]
    new.leave()
    assert on.core.consumers.find("g") is None
    beat_all(*classic, rounds=6)
    assert on.core.groups["g"].state is GroupState.STABLE
    assert sorted(p for member in classic for p in partitions(member)) == [0, 1, 2, 3]
    check_core(on.core)


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [
        (MigrationPolicy.DISABLED, False, False),
        (MigrationPolicy.UPGRADE, True, False),
        (MigrationPolicy.DOWNGRADE, False, True),
        (MigrationPolicy.BIDIRECTIONAL, True, True),
    ],
)
def test_the_policy_says_which_ways_a_group_may_go(policy: MigrationPolicy, up: bool, down: bool) -> None:
    on = stage(migration=policy)
    classic = ClassicMember(on, "g", ["t"])
    beat_all(classic)
    answer = ConsumerMember(on, "g", "m", ["t"]).beat()
    assert isinstance(answer, ApiError) is not up
    if not up:
        assert answer.code == ErrorCode.GROUP_ID_NOT_FOUND
        assert on.core.groups["g"].state is GroupState.STABLE

    on = stage(migration=policy)
    new = consumers(on, 1)[0]
    joining = ClassicMember(on, "g", ["t"])
    beat_all(new, joining, rounds=6)
    assert bool(group_of(on).classic_count) is (policy is not MigrationPolicy.DISABLED)
    if policy is not MigrationPolicy.DISABLED:
        new.leave()
        assert (on.core.consumers.find("g") is None) is down


def test_whoever_waits_in_a_classic_group_is_told_to_join_the_new_one() -> None:
    on = stage()
    one, two = ClassicMember(on, "g", ["t"]), ClassicMember(on, "g", ["t"])
    beat_all(one)
    two.beat()
    assert two.joining
    ConsumerMember(on, "g", "m", ["t"]).beat()
    on.pass_time(0)
    assert not two.joining
    check_core(on.core)


def test_a_record_of_an_earlier_kafka_is_ended() -> None:
    on = stage()
    one = consumers(on, 1)[0]
    record = ConsumerRecord(PARTITION_METADATA, "g", "", ConsumerGroupPartitionMetadataValue())
    on.log.append((*record.encode(), len(on.log) + 1))
    on.restart()
    assert group_of(on).has_partition_metadata
    one.beat()
    assert not group_of(on).has_partition_metadata
    assert visible_state(on.reloaded()) == visible_state(on.core.durable)


def test_a_group_whose_first_record_is_that_of_an_earlier_kafka_keeps_it() -> None:
    """Otherwise nothing would ever end the record: after the next restart, it would make the group anew."""
    on = stage()
    record = ConsumerRecord(PARTITION_METADATA, "g", "", ConsumerGroupPartitionMetadataValue())
    on.log.append((*record.encode(), len(on.log) + 1))
    on.restart()
    assert group_of(on).has_partition_metadata
    one = consumers(on, 1)[0]
    assert not group_of(on).has_partition_metadata
    one.leave()
    assert visible_state(on.reloaded()) == visible_state(on.core.durable)


def test_an_empty_group_is_swept_and_its_offsets_stay_while_members_read_them() -> None:
    on = stage()
    one = consumers(on, 1)[0]
    offset = OffsetToCommit("t", on.topic_id("t"), 0, 7, -1, "")
    commit = OffsetCommit("g", "m0", None, one.epoch, -1, 9, [offset])
    on.apply(on.core.commit(commit, lambda codes: None, on.now))
    on.time_ms += 30 * 24 * 3_600_000
    on.apply_all(on.core.sweep(["g"], on.now))
    assert on.core.durable.by_id["g"].committed_offset("t", 0) is not None
    one.leave()
    on.apply_all(on.core.sweep(["g"], on.now))
    assert "g" not in on.core.durable.by_id
    assert visible_state(on.reloaded()) == {}


def test_five_hundred_members_move_only_what_must_move_and_cost_little() -> None:
    on = stage({"t": 2000})
    members = consumers(on, 500)
    beat_all(*members, rounds=2)
    assert group_of(on).state is ConsumerGroupState.STABLE
    before = {p: m.member_id for m in members for p in partitions(m)}
    assert len(before) == 2000

    newcomer = ConsumerMember(on, "g", "new", ["t"])
    beat_all(newcomer, *members, newcomer, rounds=2)
    after = {p: m.member_id for m in (*members, newcomer) for p in partitions(m)}
    moved = {p for p, owner in after.items() if before[p] != owner}
    assert len(moved) == 3
    assert {after[p] for p in moved} == {"new"}

    written = len(on.log)
    began = time.process_time()
    for member in members:
        member.beat()
    per_beat_s = (time.process_time() - began) / len(members)
    assert len(on.log) == written, "a heartbeat of a stable group writes nothing"
    assert per_beat_s < 0.001, f"{per_beat_s * 1e6:.0f} microseconds"


def test_owned_partitions_may_come_in_many_entries_of_a_topic() -> None:
    """Nothing else runs meanwhile: a union of sets for each entry would hold the broker for minutes."""
    count = 30_000
    entries = [TopicPartitions(b"t", [number, 0, number]) for number in range(count)]
    entries.insert(1, TopicPartitions(b"u", [5, 5]))
    began = time.process_time()
    reported = _reported_partitions(ConsumerGroupHeartbeatRequest("g", "m", 1, topic_partitions=entries))
    assert time.process_time() - began < 2
    assert reported == {b"t": frozenset(range(count)), b"u": frozenset([5])}
