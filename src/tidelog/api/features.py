"""Features of the cluster (KIP-584): what ApiVersions tells of them, and what UpdateFeatures may ask for."""

from typing import Final, NamedTuple

from tidelog.api.services import Services

GROUP_FEATURE: Final = "group.version"
GROUP_VERSION: Final = 1
"""Of the features that Kafka finalizes, the one of which everything works here: the consumer protocol (KIP-848)."""


class Feature(NamedTuple):
    lowest: int
    highest: int
    level: int
    """In force."""


def features(services: Services) -> dict[str, Feature]:
    """By name. What the settings switch off is not there."""
    if not services.groups.serves_consumer_groups:
        return {}
    return {GROUP_FEATURE: Feature(0, GROUP_VERSION, GROUP_VERSION)}
