"""Settings of client metrics subscriptions (KIP-714). The broker stores these settings and returns them in answers to
DescribeConfigs, but it does not request metrics from clients yet.
"""

import re

from tidelog.config.key import InvalidValue, Key, Type

KEYS: tuple[Key, ...] = (
    Key("interval.ms", Type.INT, "300000", doc="Time between two pushes of metrics by a client."),
    Key(
        "match",
        Type.LIST,
        "",
        doc="Conditions that select clients: NAME=PATTERN, separated by commas; NAME is a property of a client, such as"
        " client_id. Empty for all clients.",
    ),
    Key("metrics", Type.LIST, "", doc="Prefixes of metric names, separated by commas; * for all metrics."),
)

INTERVAL_MS_RANGE = (100, 3_600_000)
"""Minimum and maximum of `interval.ms`."""
CLIENT_PROPERTIES = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""The properties of a client that `match` can compare with a pattern."""
PATTERN_LENGTH_MAX = 1000
"""Upper bound on the length of a pattern of `match`, in characters."""


def check_match(items: list[str]) -> None:
    """Raise InvalidValue unless each item is NAME=PATTERN. NAME must be one of CLIENT_PROPERTIES, and PATTERN a
    regular expression.
    """
    for item in items:
        name, *pattern = item.split("=")
        if name.strip() not in CLIENT_PROPERTIES or len(pattern) != 1:
            raise InvalidValue(
                "match", item, f"takes NAME=PATTERN, where NAME is one of {', '.join(CLIENT_PROPERTIES)}"
            )
        if len(pattern[0]) > PATTERN_LENGTH_MAX:
            raise InvalidValue("match", item[:100], f"the pattern is longer than {PATTERN_LENGTH_MAX} characters")
        try:
            re.compile(pattern[0])
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidValue("match", item, f"the pattern is not a valid regular expression: {error}") from None
