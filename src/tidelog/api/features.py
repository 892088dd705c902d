"""Features of the cluster (KIP-584), for ApiVersions and UpdateFeatures."""

from typing import Final, NamedTuple

from tidelog.api.services import Services
from tidelog.metadata.features import FEATURES_OF_BROKER_ALONE, SUPPORTED_LEVELS
from tidelog.metadata.image import TRANSACTION_FEATURE

GROUP_FEATURE: Final = "group.version"
"""Kafka's feature for the consumer group protocol (KIP-848)."""
GROUP_VERSION: Final = 1
"""The highest level of GROUP_FEATURE. It is always the current level."""


class Feature(NamedTuple):
    lowest: int
    highest: int
    level: int
    """The current level."""


def features(services: Services) -> dict[str, Feature]:
    """Return the features by name: group.version, transaction.version, and the features that `cluster_features`
    returns.

    If the settings disable the consumer group protocol, the result does not contain group.version.
    """
    own_features = {}
    if services.groups.serves_consumer_groups:
        own_features[GROUP_FEATURE] = Feature(0, GROUP_VERSION, GROUP_VERSION)
    lowest, highest = SUPPORTED_LEVELS[TRANSACTION_FEATURE]
    own_features[TRANSACTION_FEATURE] = Feature(
        lowest, highest, services.metadata.image.feature_level(TRANSACTION_FEATURE)
    )
    return {**own_features, **cluster_features(services)}


def cluster_features(services: Services) -> dict[str, Feature]:
    """Return the features whose levels the controller finalizes. Returns no features if this broker is not
    registered.

    The registration of a broker that is not part of a cluster contains no features. For such a broker, the result
    contains only transaction.version, since the level of no other feature can be changed.
    """
    image = services.metadata.image
    registration = image.brokers.get(services.config.node_id)
    if registration is None:
        return {}
    return {
        name: Feature(lowest, highest, image.feature_level(name))
        for name, (lowest, highest) in (registration.features or FEATURES_OF_BROKER_ALONE).items()
    }
