"""Features of the cluster (KIP-584), for ApiVersions and UpdateFeatures."""

from typing import Final, NamedTuple

from tidelog.api.services import Services

GROUP_FEATURE: Final = "group.version"
"""The only feature of Kafka that is fully supported here: the consumer group protocol (KIP-848)."""
GROUP_VERSION: Final = 1
"""The highest level of GROUP_FEATURE, which is the one in force."""


class Feature(NamedTuple):
    lowest: int
    highest: int
    level: int
    """The level that is in force."""


def features(services: Services) -> dict[str, Feature]:
    """Return the features by name. A feature that the settings disable is left out."""
    if not services.groups.serves_consumer_groups:
        return {}
    return {GROUP_FEATURE: Feature(0, GROUP_VERSION, GROUP_VERSION)}
