"""Finalized levels of features, and what eligible leader replicas (ELR) need and leave behind."""

import pytest

from metadata_harness.builders import broker, image, settings, topic, topic_id
from metadata_harness.journal_life import JournalLife
from tidelog.metadata.alterations import TOPIC_RESOURCE, Alteration, Change, Operation, alter_configs
from tidelog.metadata.eligible_replicas import clear_elr_after
from tidelog.metadata.features import SUPPORTED_LEVELS, LevelChange, change_feature_level, check_supported
from tidelog.metadata.image import ELR_FEATURE, METADATA_FEATURE, TRANSACTION_FEATURE, MetadataImage, snapshot
from tidelog.metadata.records import (
    BrokerConfigChanged,
    BrokerRegistered,
    FeatureLevelChanged,
    PartitionStatesChanged,
    StateChange,
    TopicConfigChanged,
)
from tidelog.model.steps import run_all
from tidelog.wire.errors import ApiError, ErrorCode


def supporting(number: int, **levels: tuple[int, int]) -> BrokerRegistered:
    features = {**SUPPORTED_LEVELS, **{name.replace("_", "."): bounds for name, bounds in levels.items()}}
    return broker(number)._replace(features=features)


@pytest.mark.parametrize(
    ("before", "change", "reason"),
    [
        (image(supporting(1)), LevelChange(METADATA_FEATURE, 2), "the controller supports levels 0 to 1"),
        (image(supporting(1)), LevelChange("nothing.version", 1), "the controller supports levels 0 to 0"),
        (image(supporting(1)), LevelChange(METADATA_FEATURE, -1), "the controller supports levels 0 to 1"),
        (image(supporting(1), broker(2)), LevelChange(METADATA_FEATURE, 1), "broker 2 supports levels 0 to 0"),
        (image(supporting(1)), LevelChange(ELR_FEATURE, 1), "needs level 1 of tidelog.metadata.version"),
        (
            image(FeatureLevelChanged(METADATA_FEATURE, 1), supporting(1)),
            LevelChange(METADATA_FEATURE, 0, allow_downgrade=True),
            "cannot be lowered",
        ),
    ],
)
def test_a_level_is_refused(before: MetadataImage, change: LevelChange, reason: str) -> None:
    with pytest.raises(ApiError) as caught:
        change_feature_level(before, change, settings())
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert reason in caught.value.message


def test_a_level_that_all_brokers_support_is_finalized() -> None:
    before = image(supporting(1), supporting(2), brokers=[1, 2])
    decision = change_feature_level(before, LevelChange(METADATA_FEATURE, 1), settings())
    assert decision.records == [FeatureLevelChanged(METADATA_FEATURE, 1)]
    finalized = image(*decision.records, supporting(1))
    assert change_feature_level(finalized, LevelChange(METADATA_FEATURE, 1), settings()).records == []
    with pytest.raises(ApiError) as caught:
        check_supported(finalized, 3, {ELR_FEATURE: (0, 1)})
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    check_supported(finalized, 3, {METADATA_FEATURE: (1, 2)})


def test_the_level_of_transactions_may_be_lowered_to_0_and_raised_again() -> None:
    before = image(FeatureLevelChanged(METADATA_FEATURE, 1), supporting(1))
    assert before.feature_level(TRANSACTION_FEATURE) == 2
    for level, present in ((0, 2), (1, 0), (0, 1), (2, 0)):
        change = LevelChange(TRANSACTION_FEATURE, level, allow_downgrade=level < present)
        decision = change_feature_level(before, change, settings())
        assert decision.records == [FeatureLevelChanged(TRANSACTION_FEATURE, level)]
        before = image(FeatureLevelChanged(METADATA_FEATURE, 1), *decision.records, supporting(1))
        assert before.feature_level(TRANSACTION_FEATURE) == level
        assert change_feature_level(before, change, settings()).records == []
    with pytest.raises(ApiError, match="is a downgrade"):
        change_feature_level(before, LevelChange(TRANSACTION_FEATURE, 1), settings())
    with pytest.raises(ApiError, match="the controller supports levels 0 to 2"):
        change_feature_level(before, LevelChange(TRANSACTION_FEATURE, 3), settings())


def test_the_level_of_transactions_survives_a_snapshot() -> None:
    lowered = image(FeatureLevelChanged(TRANSACTION_FEATURE, 0), brokers=[1])
    assert FeatureLevelChanged(TRANSACTION_FEATURE, 0) in snapshot(lowered)
    assert image(brokers=[1]).feature_level(TRANSACTION_FEATURE) == 2


def test_a_new_level_of_transactions_keeps_brokers_away_that_have_no_transactions() -> None:
    before = image(FeatureLevelChanged(METADATA_FEATURE, 1), supporting(1))
    decision = change_feature_level(before, LevelChange(TRANSACTION_FEATURE, 2), settings())
    assert decision.records == [FeatureLevelChanged(TRANSACTION_FEATURE, 2)]
    with pytest.raises(ApiError, match=r"level 2 is finalized: upgrade this broker"):
        check_supported(image(*decision.records), 3, {METADATA_FEATURE: (0, 1)})


def test_a_broker_that_is_alone_changes_the_level_of_transactions_only() -> None:
    alone = image(broker(1))
    decision = change_feature_level(alone, LevelChange(TRANSACTION_FEATURE, 1, allow_downgrade=True), settings())
    assert decision.records == [FeatureLevelChanged(TRANSACTION_FEATURE, 1)]
    with pytest.raises(ApiError, match="broker 1 supports levels 0 to 0"):
        change_feature_level(alone, LevelChange(ELR_FEATURE, 1), settings())


def test_elr_gives_min_insync_replicas_one_value() -> None:
    before = image(
        FeatureLevelChanged(METADATA_FEATURE, 1),
        supporting(1),
        BrokerConfigChanged("1", "min.insync.replicas", "3"),
        BrokerConfigChanged("2", "log.retention.ms", "3"),
    )
    decision = change_feature_level(before, LevelChange(ELR_FEATURE, 1), settings(min_insync_replicas="2"))
    assert decision.records == [
        FeatureLevelChanged(ELR_FEATURE, 1),
        BrokerConfigChanged("", "min.insync.replicas", "2"),
        BrokerConfigChanged("1", "min.insync.replicas", None),
    ]


def elr_cluster() -> MetadataImage:
    """Return three topics with replica 2 in the ELR; c has its own min.insync.replicas."""
    life = JournalLife(elr=True, min_insync_replicas="2")
    life.start(1, 2)
    topics = [topic("a", 1, [(1, 2)]), topic("b", 2, [(1, 2)]), topic("c", 3, [(1, 2)], min_insync_replicas="2")]
    numbers = {topic_id(number): (0,) for number in (1, 2, 3)}
    life.apply([*topics, PartitionStatesChanged((StateChange(numbers, isr=(1,), elr=(2,)),))])
    return life.image


@pytest.mark.parametrize(
    ("change", "cleared"),
    [
        (BrokerConfigChanged("", "min.insync.replicas", "1"), [1, 2]),
        (BrokerConfigChanged("", "min.insync.replicas", "2"), []),
        (BrokerConfigChanged("", "log.retention.ms", "2"), []),
        (TopicConfigChanged(topic_id(1), "min.insync.replicas", "1"), [1]),
        (TopicConfigChanged(topic_id(1), "min.insync.replicas", "2"), []),
        (TopicConfigChanged(topic_id(3), "min.insync.replicas", None), []),
        (TopicConfigChanged(topic_id(3), "min.insync.replicas", "3"), [3]),
    ],
)
def test_a_change_of_the_effective_value_clears_the_elr(
    change: BrokerConfigChanged | TopicConfigChanged, cleared: list[int]
) -> None:
    records = clear_elr_after(elr_cluster(), [change], settings())
    expected = PartitionStatesChanged((StateChange({topic_id(number): (0,) for number in cleared}, elr=()),))
    assert records == ([expected] if cleared else [])


def test_the_elr_is_cleared_in_the_entry_of_the_setting() -> None:
    alteration = Alteration(TOPIC_RESOURCE, "a", [Change("min.insync.replicas", Operation.SET, "1")])
    records = run_all(alter_configs(elr_cluster(), [alteration], settings())).records
    assert [type(record) for record in records] == [TopicConfigChanged, PartitionStatesChanged]
    assert run_all(alter_configs(elr_cluster(), [alteration], settings(), validate_only=True)).records == []


def test_without_elr_settings_are_the_only_records() -> None:
    alteration = Alteration(TOPIC_RESOURCE, "a", [Change("min.insync.replicas", Operation.SET, "1")])
    records = run_all(alter_configs(image(topic("a", 1)), [alteration], settings())).records
    assert records == [TopicConfigChanged(topic_id(1), "min.insync.replicas", "1")]
