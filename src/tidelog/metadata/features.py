"""Decisions about the finalized levels of the cluster's features (KIP-584). Pure.

A broker registers with the levels that it supports. A level is finalized only if every registered broker supports it.
After that, a broker that does not support the finalized level cannot register. So every broker of the cluster can read
the records that the finalized level allows.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.elections import MIN_INSYNC_REPLICAS
from tidelog.metadata.eligible_replicas import clear_elr
from tidelog.metadata.image import (
    ELR_FEATURE,
    METADATA_FEATURE,
    TRANSACTION_FEATURE,
    ImageBuilder,
    MetadataImage,
)
from tidelog.metadata.records import BrokerConfigChanged, FeatureLevelChanged, JournalRecord
from tidelog.wire.errors import ApiError, ErrorCode

SUPPORTED_LEVELS: Final[Mapping[str, tuple[int, int]]] = {
    METADATA_FEATURE: (0, 1),
    ELR_FEATURE: (0, 1),
    TRANSACTION_FEATURE: (0, 2),
}
"""The lowest and the highest level that this version of Tidelog supports, for each feature that the controller
knows."""
FEATURES_OF_BROKER_ALONE: Final[Mapping[str, tuple[int, int]]] = {TRANSACTION_FEATURE: (0, 2)}
"""The features of a broker without a cluster. Such a broker registers without features, because there is no other
broker that must support the same levels."""


class LevelChange(NamedTuple):
    feature: str
    level: int
    """The new level. Level 0 switches the feature off."""
    allow_downgrade: bool = False


def change_feature_level(image: MetadataImage, change: LevelChange, config: BrokerConfig) -> JournalDecision[None]:
    """Finalize a level. Raises ApiError (INVALID_UPDATE_VERSION)

    - if the controller or a registered broker does not support the level,
    - if the change is a downgrade that the request does not allow,
    - if it lowers `tidelog.metadata.version`, since the journal may already have records that need the current level,
    - if it changes another feature of a cluster while `tidelog.metadata.version` has level 0,
    - or if it switches ELR off while a partition has an empty ISR.
    """
    feature, level, _ = change
    current_level = image.feature_level(feature)
    lowest, highest = SUPPORTED_LEVELS.get(feature, (0, 0))
    if not lowest <= level <= highest:
        raise _refusal(f"the controller supports levels {lowest} to {highest} of {feature}, not {level}")
    is_alone = _is_alone(image)
    for broker in image.brokers.values():
        supported = broker.features or (FEATURES_OF_BROKER_ALONE if is_alone else {})
        lowest, highest = supported.get(feature, (0, 0))
        if not lowest <= level <= highest:
            raise _refusal(
                f"broker {broker.broker_id} supports levels {lowest} to {highest} of {feature}, not {level}; upgrade "
                "or unregister it"
            )
    # If the feature has this level already, nothing changes, with one exception: a level above 0 that applies without a
    # record (LEVELS_WITHOUT_RECORD) gets its record now.
    if level == current_level and (not level or feature in image.feature_levels):
        return JournalDecision([], None)
    if level < current_level and not change.allow_downgrade:
        raise _refusal(
            f"{feature} has level {current_level}; the change to level {level} is a downgrade, which the request does "
            "not allow"
        )
    if level < current_level and feature == METADATA_FEATURE:
        raise _refusal(
            f"{feature} has level {current_level} and cannot be lowered: the journal may have records that need "
            f"level {current_level}"
        )
    if feature != METADATA_FEATURE and image.metadata_level == 0 and not is_alone:
        raise _refusal(f"{feature} needs level 1 of {METADATA_FEATURE}")
    records: list[JournalRecord] = [FeatureLevelChanged(feature, level)]
    if feature == ELR_FEATURE:
        records += _elr_records(image, level, config)
    return JournalDecision(records, None)


def _is_alone(image: MetadataImage) -> bool:
    """Return whether exactly one broker is registered, and without features. Such a broker is not part of a cluster."""
    return len(image.brokers) == 1 and not any(broker.features for broker in image.brokers.values())


def change_feature_levels(
    image: MetadataImage, changes: Sequence[LevelChange], config: BrokerConfig, *, validate_only: bool = False
) -> JournalDecision[None]:
    """Finalize several levels in the order of the changes. Either all levels are finalized, or none. Raises the
    ApiError of `change_feature_level`.
    """
    records: list[JournalRecord] = []
    for change in changes:
        decision = change_feature_level(image, change, config)
        image = ImageBuilder(image).apply(decision.records).build()
        records += decision.records
    return JournalDecision([] if validate_only else records, None)


def with_newest_levels(first_records: Sequence[JournalRecord], config: BrokerConfig) -> list[JournalRecord]:
    """Return the first records of a new cluster's journal, with records that finalize the newest level of each feature,
    as `kafka-storage format` does for a new cluster.
    """
    image = ImageBuilder(MetadataImage()).apply(first_records).build()
    changes = [LevelChange(feature, newest) for feature, (_, newest) in SUPPORTED_LEVELS.items()]
    return [*first_records, *change_feature_levels(image, changes, config).records]


def _elr_records(image: MetadataImage, level: int, config: BrokerConfig) -> list[JournalRecord]:
    """Return the records that must follow `FeatureLevelChanged` when eligible leader replicas are switched on or off.

    As in Kafka, while ELR is on, `min.insync.replicas` has one value for the cluster and cannot be set for a single
    broker. If the brokers and the controller used different values, a replica that lacks committed records could be in
    the ELR.
    """
    if not level:
        for topic in image.topics.values():
            for partition, state in enumerate(topic.partitions):
                if not state.isr:
                    raise _refusal(
                        f"{topic.name}-{partition} has an empty ISR; wait until an eligible leader replica is back, or "
                        "elect a leader (kafka-leader-election --election-type unclean)"
                    )
        return clear_elr(image, image.topics.values())
    records: list[JournalRecord] = []
    if MIN_INSYNC_REPLICAS not in image.broker_configs.get("", {}):
        records.append(BrokerConfigChanged("", MIN_INSYNC_REPLICAS, str(config.get(MIN_INSYNC_REPLICAS))))
    records += [
        BrokerConfigChanged(broker, MIN_INSYNC_REPLICAS, None)
        for broker, settings in image.broker_configs.items()
        if broker and MIN_INSYNC_REPLICAS in settings
    ]
    return records


def check_supported(image: MetadataImage, broker_id: int, features: Mapping[str, tuple[int, int]]) -> None:
    """Raise ApiError (UNSUPPORTED_VERSION) unless a broker with these features supports every finalized level."""
    for feature, level in image.feature_levels.items():
        lowest, highest = features.get(feature, (0, 0))
        if not lowest <= level <= highest:
            raise ApiError(
                f"broker {broker_id} supports levels {lowest} to {highest} of {feature}, but level {level} is "
                "finalized: upgrade this broker",
                ErrorCode.UNSUPPORTED_VERSION,
            )


def _refusal(reason: str) -> ApiError:
    return ApiError(f"no feature was changed: {reason}", ErrorCode.INVALID_UPDATE_VERSION)
