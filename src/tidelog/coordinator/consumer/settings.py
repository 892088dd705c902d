"""The settings of consumer groups: the broker's defaults, and the values of single groups."""

from collections.abc import Mapping
from enum import Enum

from tidelog.coordinator.consumer.assignors import ASSIGNORS

SESSION_TIMEOUT_KEY = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_KEY = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL_KEY = "consumer.assignment.interval.ms"
PATTERN_LENGTH_MAX = 4096
"""Upper bound on the characters of a regular expression."""
PATTERNS_MAX = 1000
"""Upper bound on the different regular expressions in one group."""


class MigrationPolicy(Enum):
    """The allowed conversions of groups that have members: from the classic to the consumer protocol, or back."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def may_upgrade(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def may_downgrade(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


class ConsumerSettings:
    """The broker's settings of consumer groups: `group.consumer.*`, and whether the consumer protocol is enabled. A
    group may have other values for some of these settings (see `value_for_group`).
    """

    __slots__ = (
        "assignment_interval_ms",
        "assignors",
        "heartbeat_interval_ms",
        "limits",
        "max_size",
        "migration",
        "protocol_enabled",
        "session_timeout_ms",
    )

    def __init__(
        self,
        *,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 5000,
        assignment_interval_ms: int = 1000,
        max_size: int = 2**31 - 1,
        assignors: tuple[str, ...] = tuple(ASSIGNORS),
        migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL,
        protocol_enabled: bool = True,
        limits: Mapping[str, tuple[int, int]] = {},
    ) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.assignment_interval_ms = assignment_interval_ms
        """Minimum time between two computations of a group's target assignment; 0 for no minimum."""
        self.max_size = max_size
        """Upper bound on the members of one group."""
        self.assignors = assignors
        """The supported assignors. The first one is used if no member prefers another."""
        self.migration = migration
        self.protocol_enabled = protocol_enabled
        """Whether `group.coordinator.rebalance.protocols` includes the consumer protocol."""
        self.limits = limits
        """Minimum and maximum (`group.consumer.min.*`, `group.consumer.max.*`) of a group's own value, by the key of
        the group setting."""

    def value_for_group(self, key: str, own_settings: Mapping[str, str], default: int) -> int:
        """Return the value of a setting for a group.

        If the group has a value in `own_settings`, this value is raised or lowered to the broker's current limits.
        Otherwise the result is `default`, even if it is outside the limits.
        """
        text = own_settings.get(key)
        if text is None:
            return default
        minimum, maximum = self.limits.get(key, (0, 2**31 - 1))
        return min(max(int(text), minimum), maximum)
