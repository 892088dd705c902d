"""What the settings say about consumer groups, for all of them and for one."""

from collections.abc import Mapping
from enum import Enum

from tidelog.coordinator.consumer.assignors import ASSIGNORS

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"
PATTERN_LENGTH_MAX = 4096
PATTERNS_MAX = 1000
"""Different regular expressions of one group."""


class MigrationPolicy(Enum):
    """Which ways a group may go between the classic and the consumer protocol while it has members."""

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
    """Kafka's `group.consumer.*`."""

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
        """A new target is computed at most this often; 0 for as often as needed."""
        self.max_size = max_size
        self.assignors = assignors
        """The first is taken where no member asks for another."""
        self.migration = migration
        self.is_served = is_served
        self.limits = limits
        """Setting of a group -> least and most that counts of it (`group.consumer.min.*`, `group.consumer.max.*`)."""

    def of_group(self, setting: str, own: Mapping[str, str], default: int) -> int:
        """`setting` of the group that has `own` settings, within the broker's limits of now."""
        text = own.get(setting)
        if text is None:
            return default
        least, most = self.limits.get(setting, (0, 2**31 - 1))
        return min(max(int(text), least), most)
