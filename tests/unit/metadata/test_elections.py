"""Who leads a partition: the order of elections, ISR and ELR, and decisions over many partitions.

Histories of the same rules are in `tests/scenarios/controller`.
"""

import sys
from collections.abc import Iterable
from typing import Any

import pytest

from metadata_harness.builders import image, settings, topic
from metadata_harness.journal_life import JournalLife, states
from tidelog.metadata.controller import NewTopic, create_topics
from tidelog.metadata.elections import (
    REBALANCED_PARTITIONS_MAX,
    UNKNOWN_DIRECTORY,
    ElectionRules,
    Target,
    TopicRules,
    elect_leaders,
    next_state,
    rebalance_leaders,
)
from tidelog.metadata.image import ELR_FEATURE, METADATA_FEATURE, ImageBuilder
from tidelog.metadata.records import (
    RECOVERED,
    RECOVERING,
    BrokerConfigChanged,
    DirectoryId,
    FeatureLevelChanged,
    PartitionState,
    PartitionStatesChanged,
    encode,
)
from tidelog.metadata.registration import fence_broker
from tidelog.model.steps import run_all
from tidelog.wire.errors import ApiError, ErrorCode

ONLINE = ElectionRules(min_isr=2, uses_elr=False, allows_unclean=False)
ELR = ONLINE._replace(uses_elr=True)
UNCLEAN = ONLINE._replace(allows_unclean=True)


def state(leader: int, isr: tuple[int, ...], **fields: tuple[int, ...] | int) -> PartitionState:
    return PartitionState(leader, 5, (1, 2, 3), isr, 7)._replace(**fields)


def after(
    before: PartitionState, active: Iterable[int], rules: ElectionRules = ONLINE, **target: object
) -> PartitionState:
    living = tuple(active)
    return next_state(before, Target(**target), rules, lambda broker: broker in living)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "active", "rules", "leader", "isr", "recovery"),
    [
        # The present leader stays, also if it is not the preferred one.
        (state(2, (1, 2)), (1, 2, 3), ONLINE, 2, (1, 2), RECOVERED),
        # The first active replica of the assignment that is in the ISR, in whatever order the ISR is.
        (state(1, (3, 2, 1)), (2, 3), ONLINE, 2, (3, 2, 1), RECOVERED),
        (state(1, (3, 1)), (2, 3), ONLINE, 3, (3, 1), RECOVERED),
        # No member of the ISR is active.
        (state(1, (1,)), (2, 3), ONLINE, -1, (1,), RECOVERED),
        (state(1, (1,)), (2, 3), UNCLEAN, 2, (2,), RECOVERING),
        (state(-1, (1,)), (), UNCLEAN, -1, (1,), RECOVERED),
        # Members of the ELR lead only when the ISR is empty.
        (state(1, (1,), elr=(2,)), (2, 3), ELR, -1, (1,), RECOVERED),
        (state(-1, (), elr=(2, 3)), (3,), ELR, 3, (3,), RECOVERED),
        (state(-1, (), elr=(2, 3)), (1,), ELR, -1, (), RECOVERED),
        (state(-1, (), elr=(2, 3), last_known_elr=(1,)), (1,), ELR, -1, (), RECOVERED),
        # The last known leader, if ISR and ELR are empty and it is active. No setting is needed.
        (state(-1, (), last_known_elr=(3,)), (1, 2, 3), ELR, 3, (3,), RECOVERING),
        (state(-1, (), last_known_elr=(3,)), (1, 2), ELR, -1, (), RECOVERED),
        (state(-1, (), last_known_elr=(3,)), (1, 2), ELR._replace(allows_unclean=True), 1, (1,), RECOVERING),
        # A list of several last known members is not a last leader.
        (state(-1, (), last_known_elr=(2, 3)), (2, 3), ELR, -1, (), RECOVERED),
    ],
)
def test_the_order_of_an_election(
    before: PartitionState,
    active: tuple[int, ...],
    rules: ElectionRules,
    leader: int,
    isr: tuple[int, ...],
    recovery: int,
) -> None:
    new = after(before, active, rules)
    assert (new.leader, new.isr, new.recovery) == (leader, isr, recovery)
    assert new.leader_epoch == before.leader_epoch + (leader != before.leader)


def test_a_preferred_election_moves_the_leader_only_to_a_replica_in_sync() -> None:
    assert after(state(2, (1, 2)), (1, 2, 3), prefer_first=True).leader == 1
    assert after(state(2, (2, 3)), (1, 2, 3), prefer_first=True) == state(2, (2, 3))
    assert after(state(2, (1, 2)), (2, 3), prefer_first=True) == state(2, (1, 2))


def test_no_change_gives_the_same_object() -> None:
    before = state(1, (1, 2))
    assert after(before, (1, 2, 3), isr=(1, 2)) is before


def test_eligible_replicas_are_those_that_left_a_small_isr() -> None:
    assert after(state(1, (1, 2, 3)), (1, 2, 3), ELR, isr=(1, 2)).elr == ()
    small = after(state(1, (1, 2)), (1, 2, 3), ELR, isr=(1,))
    assert small.elr == (2,)
    assert after(small, (1, 2, 3), ELR, isr=(1,), unclean_broker=2).elr == ()
    assert after(small, (1, 2, 3), ELR, isr=(1, 3)).elr == ()
    assert after(small, (1, 2, 3), ONLINE).elr == ()
    # A partition needs at most as many in-sync replicas as it has replicas.
    one_replica = PartitionState(1, 0, (1,), (1,), 0)
    gone = after(one_replica, (), ELR, isr=())
    assert (gone.isr, gone.elr, gone.last_known_elr) == ((), (1,), (1,))
    assert after(gone, (1,), ELR) == PartitionState(1, 2, (1,), (1,), 2)


def test_a_leader_from_the_elr_ends_the_elr_where_it_can_commit_alone() -> None:
    before = state(-1, (), elr=(1, 2))
    assert after(before, (2,), ELR).elr == (1,)
    assert after(before, (2,), ELR._replace(min_isr=1)).elr == ()


def test_the_last_leader_is_remembered_when_the_isr_becomes_empty() -> None:
    led = after(state(2, (2,)), (), ELR, isr=())
    assert (led.leader, led.elr, led.last_known_elr) == (-1, (2,), (2,))
    # Without ELR the partition lost its leader before. The ISR still names it.
    assert after(state(-1, (3,)), (), ELR, isr=(), unclean_broker=3).last_known_elr == (3,)
    # It is forgotten with the next leader.
    assert after(led, (2,), ELR).last_known_elr == ()


def test_a_last_leader_that_has_lost_a_directory_is_forgotten_if_there_are_other_replicas() -> None:
    lost: dict[str, Any] = {"unclean_broker": 2, "has_lost_directory": True}
    waiting = state(-1, (), last_known_elr=(2,))
    assert after(waiting, (), ELR, **lost).last_known_elr == ()
    assert after(after(waiting, (), ELR, **lost), (1, 2, 3), ELR).leader == -1
    assert after(state(2, (2,)), (), ELR, isr=(), **lost).last_known_elr == ()
    assert after(state(-1, (), last_known_elr=(3,)), (), ELR, **lost).last_known_elr == (3,)
    alone = PartitionState(-1, 0, (2,), (), 0, last_known_elr=(2,))
    assert after(alone, (), ELR, **lost).last_known_elr == (2,)


def test_a_reassignment_waits_for_an_active_replica_in_sync() -> None:
    """Otherwise the replicas that are removed could be the only ones that may still lead."""
    before = state(-1, (3,), replicas=(3, 1, 2), adding=(3,), removing=(1,))
    assert after(before, (1, 2), UNCLEAN).replicas == (3, 1, 2)
    assert after(before, (1, 2, 3), UNCLEAN) == state(3, (3,), replicas=(3, 2), leader_epoch=6, partition_epoch=8)


def test_a_reassignment_to_fewer_replicas_waits_until_all_of_them_are_in_sync() -> None:
    before = state(1, (1, 2), replicas=(3, 1, 2), removing=(2,))
    assert after(before, (1, 2), UNCLEAN).replicas == (3, 1, 2)
    assert after(before, (1, 2, 3), UNCLEAN, isr=(1, 2, 3)).replicas == (3, 1)


def test_directories_follow_their_replicas() -> None:
    one, two, three = (DirectoryId(bytes([n]) * 16) for n in (1, 2, 3))
    before = state(1, (1, 2, 3))._replace(directories=(one, two, three))
    new = after(before, (1, 2, 3, 4), replicas=(4, 3, 1, 2), adding=(4,), removing=(2,))
    assert new.directories == (UNKNOWN_DIRECTORY, three, one, two)
    complete = after(new, (1, 2, 3, 4), isr=(1, 3, 4))
    assert (complete.replicas, complete.directories) == ((4, 3, 1), (UNKNOWN_DIRECTORY, three, one))


def test_rules_of_a_topic_come_from_the_topic_the_cluster_and_the_controller_in_this_order() -> None:
    config = settings(min_insync_replicas="3", unclean_leader_election_enable="true")
    assert TopicRules(image(), config).of({}) == ElectionRules(3, False, True)
    cluster = image(
        BrokerConfigChanged("", "min.insync.replicas", "2"),
        BrokerConfigChanged("1", "min.insync.replicas", "9"),
        FeatureLevelChanged(ELR_FEATURE, 1),
    )
    rules = TopicRules(cluster, config)
    assert rules.of({}) == ElectionRules(2, True, True)
    own = {"min.insync.replicas": "1", "unclean.leader.election.enable": "false"}
    assert rules.of(own) == ElectionRules(1, True, False)


def test_unknown_types_of_elections() -> None:
    with pytest.raises(ApiError) as caught:
        run_all(elect_leaders(image(), 2, None, settings()))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    with pytest.raises(ApiError) as caught:
        run_all(elect_leaders(image(topic("a", 1)), 2, [("a", 0)], settings()))
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_REQUEST, "Unknown election type 2")


def test_no_new_kind_of_record_is_written_before_all_brokers_can_read_it() -> None:
    before = image(topic("a", 1, [(1, 2)]), brokers=[1, 2])
    assert not before.feature_levels.get(METADATA_FEATURE)
    assert run_all(fence_broker(before, 1, "run-1", settings())).records == []
    assert run_all(rebalance_leaders(before, settings())).records == []
    led_by_two = image(topic("a", 1, [(1, 2)]), brokers=[1, 2])
    led_by_two.topics["a"].partitions = (PartitionState(2, 1, (1, 2), (1, 2), 1),)
    with pytest.raises(ApiError) as caught:
        run_all(elect_leaders(led_by_two, 0, None, settings()))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_rebalance_moves_a_bounded_number_of_leaders() -> None:
    life = JournalLife()
    life.start(1, 2)
    assignments = [(number, (1, 2)) for number in range(REBALANCED_PARTITIONS_MAX + 1)]
    life.decide(create_topics(life.image, [NewTopic("t", assignments=assignments)], life.config, life.new_id))
    topic_image = life.image.topics["t"]
    topic_image.partitions = tuple(s._replace(leader=2) for s in topic_image.partitions)
    decision = run_all(rebalance_leaders(life.image, life.config))
    assert decision.reply
    (record,) = decision.records
    assert isinstance(record, PartitionStatesChanged)
    assert [len(numbers) for change in record.changes for numbers in change.partitions.values()] == [
        REBALANCED_PARTITIONS_MAX
    ]


def test_the_end_of_a_broker_is_one_small_entry_for_many_partitions() -> None:
    life = JournalLife()
    life.start(1, 2, 3)
    life.decide(create_topics(life.image, [NewTopic("t", 9000, 3)], life.config, life.new_id))
    decision = run_all(fence_broker(life.image, 2, life.image.brokers[2].incarnation, life.config))
    assert len(decision.records) == 2
    assert len(encode(1, decision.records)) < 9000 * 6
    life.apply(decision.records)
    assert all(2 not in s.isr and s.leader != 2 for s in states(life.image).values())
    distinct_states = {id(s): s for s in states(life.image).values()}
    assert len(distinct_states) < 20


def test_work_grows_with_the_number_of_partitions_and_not_with_its_square() -> None:
    def calls(partitions: int) -> int:
        """Return the number of calls of functions while the end of a broker is decided and applied."""
        life = JournalLife()
        life.start(1, 2, 3)
        life.decide(create_topics(life.image, [NewTopic("t", partitions, 3)], life.config, life.new_id))
        events: list[str] = []
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            decision = run_all(fence_broker(life.image, 2, life.image.brokers[2].incarnation, life.config))
            fenced = ImageBuilder(life.image).apply(decision.records).build()
        finally:
            sys.setprofile(None)
        assert all(2 not in s.isr for s in fenced.topics["t"].partitions)
        return len(events)

    assert calls(5000) < 11 * calls(500)
