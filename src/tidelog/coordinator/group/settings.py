"""The broker's settings for groups, and the limits for which there is no setting."""

from tidelog.coordinator.consumer.settings import ConsumerSettings

GROUPS_MAX = 100_000
"""Upper bound on the groups of one partition of `__consumer_offsets`. A request to create another group is refused
with COORDINATOR_NOT_AVAILABLE. The client retries, and succeeds when a sweep has deleted unused groups."""
PENDING_MEMBERS_MAX = 10_000
"""Upper bound, for each group, on the member ids that clients have received but not yet used to join (KIP-394)."""
METADATA_BYTES_MAX = 64 << 20
"""Upper bound, in bytes, on the estimated memory for the protocols of all members of one group. If the group uses the
consumer protocol, this is the bound for the subscriptions of its members."""
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""Upper bound on the time for which a member's first join is parked, in milliseconds. The session timeout cannot
limit this time, because the member sends no heartbeats before its first join is answered."""


class GroupSettings:
    """The values of Kafka's settings `group.*` and `offset*` that the core uses."""

    __slots__ = (
        "consumer",
        "group_max_size",
        "initial_rebalance_delay_ms",
        "max_session_timeout_ms",
        "min_session_timeout_ms",
        "offset_metadata_max",
        "offsets_retention_ms",
        "record_bytes_max",
    )

    def __init__(
        self,
        *,
        initial_rebalance_delay_ms: int = 3000,
        min_session_timeout_ms: int = 6000,
        max_session_timeout_ms: int = 1_800_000,
        group_max_size: int = 2**31 - 1,
        offset_metadata_max: int = 4096,
        offsets_retention_ms: int = 10_080 * 60_000,
        record_bytes_max: int = 1_048_588,
        consumer: ConsumerSettings | None = None,
    ) -> None:
        self.consumer = consumer or ConsumerSettings()
        self.initial_rebalance_delay_ms = initial_rebalance_delay_ms
        self.min_session_timeout_ms = min_session_timeout_ms
        self.max_session_timeout_ms = max_session_timeout_ms
        self.group_max_size = group_max_size
        self.offset_metadata_max = offset_metadata_max
        """In UTF-16 code units, as in Kafka."""
        self.offsets_retention_ms = offsets_retention_ms
        self.record_bytes_max = record_bytes_max
        """Size limit of a batch that is written to `__consumer_offsets`, in bytes."""
