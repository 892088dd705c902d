"""`tidelog cluster upgrade`: show the levels of the cluster's features, and finalize the newest levels (KIP-584)."""

from typing import TYPE_CHECKING, NamedTuple

from tidelog.cli.cluster import ask_controller
from tidelog.cli.connection import ANSWER_MS
from tidelog.cli.own_client import ask_any, raise_for_code
from tidelog.cli.tables import Column, Table, print_json, print_table

if TYPE_CHECKING:
    from tidelog.client.blocking import Client

UPGRADE = 1
METADATA_VERSION = "metadata.version"
"""Every cluster has a feature whose name ends with this: `tidelog.metadata.version`, in Kafka `metadata.version`."""
ALONE = (
    "This broker is alone: it does not share its metadata store with other brokers, so it does not have the feature "
    "tidelog.metadata.version. To grow it into a cluster, see docs/cluster.md."
)


class FeatureLevel(NamedTuple):
    """The names of the fields are keys of the JSON output."""

    feature: str
    level: int
    """The finalized level; 0 if no level is finalized."""
    newest: int
    """The highest level that is supported by the broker to which the request was sent."""


def read_levels(client: "Client") -> list[FeatureLevel]:
    from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

    request = ApiVersionsRequest(client_software_name="tidelog", client_software_version="0")
    answer = ask_any(client, request, ApiVersionsResponse)
    raise_for_code(answer.error_code, None)
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    return [
        FeatureLevel(feature.name, finalized.get(feature.name, 0), feature.max_version)
        for feature in sorted(answer.supported_features, key=lambda feature: feature.name)
    ]


def upgrade(client: "Client", *, execute: bool, json: bool) -> int:
    """Show the levels. With `execute`, first finalize the newest levels. Return the exit code. Raises CommandError
    if the cluster refuses a level.
    """
    levels = read_levels(client)
    behind = [feature for feature in levels if feature.level < feature.newest]
    if execute and behind:
        _finalize(client, behind)
        levels = read_levels(client)
    if json:
        print_json([feature._asdict() for feature in levels])
        return 0
    columns = [Column("Feature"), Column("Level", True), Column("Newest", True)]
    print_table(Table(columns, [[each.feature, str(each.level), str(each.newest)] for each in levels]))
    if not any(each.feature.endswith(METADATA_VERSION) for each in levels):
        print(f"\n{ALONE}")
    elif not behind:
        print("\nAll levels are the newest.")
    elif execute:
        print("\nUpgraded: " + ", ".join(each.feature for each in behind) + ".")
    else:
        print(
            "\n--execute finalizes the newest levels. Brokers of an older version cannot join the cluster after that."
        )
    return 0


def _finalize(client: "Client", features: list[FeatureLevel]) -> None:
    """Finalize the newest levels, one feature after another, because one level may depend on another."""
    from tidelog.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

    # The level of the cluster's metadata is finalized first, because other features need it.
    for feature in sorted(features, key=lambda each: (not each.feature.endswith(METADATA_VERSION), each.feature)):
        update = FeatureUpdateKey(feature=feature.feature, max_version_level=feature.newest, upgrade_type=UPGRADE)
        request = UpdateFeaturesRequest(timeout_ms=ANSWER_MS, feature_updates=[update])
        answer = ask_controller(client, request, UpdateFeaturesResponse)
        raise_for_code(answer.error_code, answer.error_message)
        for result in answer.results:
            raise_for_code(result.error_code, result.error_message)
