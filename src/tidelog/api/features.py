"""Features of the cluster (KIP-584), for ApiVersions and UpdateFeatures."""

from typing import Final, NamedTuple

from tidelog.api.services import Services
from tidelog.metadata.image import TRANSACTION_FEATURE

GROUP_FEATURE: Final = "group.version"
"""The only feature of Kafka that is fully supported here: the consumer group protocol (KIP-848)."""
GROUP_VERSION: Final = 1
"""The highest level of GROUP_FEATURE, which is the one in force."""

TRANSACTION_VERSION: Final = 2
"""The highest level of TRANSACTION_FEATURE."""


class Feature(NamedTuple):
    lowest: int
    highest: int
    level: int
    """The level that is in force."""


def features(services: Services) -> dict[str, Feature]:
    """Return the features by name: those of this software, then those of the cluster.

    A feature that the settings disable is left out.
    """
    found = {}
    if services.groups.serves_consumer_groups:
        found[GROUP_FEATURE] = Feature(0, GROUP_VERSION, GROUP_VERSION)
    found[TRANSACTION_FEATURE] = Feature(0, TRANSACTION_VERSION, services.metadata.image.transaction_version)
    return {**found, **cluster_features(services)}


def cluster_features(services: Services) -> dict[str, Feature]:
    """Return the features whose levels the controller finalizes; none if this broker is no part of a cluster."""
    image = services.metadata.image
    own = image.brokers.get(services.config.node_id)
    if own is None:
        return {}
    return {
        name: Feature(lowest, highest, image.feature_levels.get(name, 0))
        for name, (lowest, highest) in own.features.items()
    }
