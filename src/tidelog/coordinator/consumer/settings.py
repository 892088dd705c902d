"""The settings of consumer groups: the broker's defaults, and the values of single groups."""

from collections.abc import Mapping
from enum import Enum

from tidelog.coordinator.consumer.assignors import ASSIGNORS

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"
PATTERN_LENGTH_MAX = 4096
PATTERNS_MAX = 1000
"""Upper bound on the different regular expressions in one group."""


class MigrationPolicy(Enum):
    """The allowed conversions of a group with members between the classic and the consumer protocol."""

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
    """The values of Kafka's settings `group.consumer.*`."""

    __slots__ = (
        "assignment_interval_ms",
        "assignors",
        "heartbeat_interval_ms",
        "is_served",
        "limits",
        "max_size",
        "migration",
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
        is_served: bool = True,
        limits: Mapping[str, tuple[int, int]] = {},
    ) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.assignment_interval_ms = assignment_interval_ms
        """Minimum time between two computations of a group's target assignment; 0 for no minimum."""
        self.max_size = max_size
        self.assignors = assignors
        """The supported assignors. The first one is used if no member prefers another."""
        self.migration = migration
        self.is_served = is_served
        self.limits = limits
        """Minimum and maximum by name of the group setting (`group.consumer.min.*`, `group.consumer.max.*`)."""

    def of_group(self, setting: str, own: Mapping[str, str], default: int) -> int:
        """Return the value of `setting` for a group with the settings `own`, within the broker's current limits."""
        text = own.get(setting)
        if text is None:
            return default
        minimum, maximum = self.limits.get(setting, (0, 2**31 - 1))
        return min(max(int(text), minimum), maximum)
