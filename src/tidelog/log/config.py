"""The settings that a log uses, as plain attributes."""

from collections.abc import Mapping
from copy import copy
from typing import Any

INT64_MAX = (1 << 63) - 1
DAY_MS = 86_400_000


class LogConfig:
    """Settings of one topic, and `producer.id.expiration.ms` of the broker. A field's name is the name of the setting
    with `_` instead of `.`. The defaults are those of Kafka 4.3.

    In `retention_ms` and `retention_bytes`, -1 means no limit. Two settings exist only in Tidelog: with `durability`
    = `fsync`, acknowledgements wait for the disk; with `record_validation` = `full`, every record is decoded before
    its batch is appended.
    """

    __slots__ = (
        "cleanup_policy",
        "compression_gzip_level",
        "compression_lz4_level",
        "compression_type",
        "compression_zstd_level",
        "delete_retention_ms",
        "durability",
        "file_delete_delay_ms",
        "flush_messages",
        "flush_ms",
        "follower_replication_throttled_replicas",
        "index_interval_bytes",
        "leader_replication_throttled_replicas",
        "max_compaction_lag_ms",
        "max_message_bytes",
        "message_timestamp_after_max_ms",
        "message_timestamp_before_max_ms",
        "message_timestamp_type",
        "min_cleanable_dirty_ratio",
        "min_compaction_lag_ms",
        "min_insync_replicas",
        "producer_id_expiration_ms",
        "record_validation",
        "retention_bytes",
        "retention_ms",
        "segment_bytes",
        "segment_index_bytes",
        "segment_jitter_ms",
        "segment_ms",
    )

    def __init__(
        self,
        *,
        segment_bytes: int = 1 << 30,
        segment_ms: int = 7 * DAY_MS,
        segment_index_bytes: int = 10 << 20,
        index_interval_bytes: int = 4096,
        retention_ms: int = 7 * DAY_MS,
        retention_bytes: int = -1,
        cleanup_policy: str = "delete",
        compression_type: str = "producer",
        compression_gzip_level: int = -1,
        compression_lz4_level: int = 9,
        compression_zstd_level: int = 3,
        file_delete_delay_ms: int = 60_000,
        max_message_bytes: int = (1 << 20) + 12,
        message_timestamp_type: str = "CreateTime",
        message_timestamp_before_max_ms: int = INT64_MAX,
        message_timestamp_after_max_ms: int = 3_600_000,
        record_validation: str = "header",
        producer_id_expiration_ms: int = DAY_MS,
        flush_messages: int = INT64_MAX,
        flush_ms: int = INT64_MAX,
        follower_replication_throttled_replicas: str = "",
        leader_replication_throttled_replicas: str = "",
        durability: str = "interval",
        min_insync_replicas: int = 1,
        segment_jitter_ms: int = 0,
        delete_retention_ms: int = DAY_MS,
        min_cleanable_dirty_ratio: float = 0.5,
        min_compaction_lag_ms: int = 0,
        max_compaction_lag_ms: int = INT64_MAX,
    ) -> None:
        self.segment_bytes = segment_bytes
        self.segment_ms = segment_ms
        self.segment_index_bytes = segment_index_bytes
        self.index_interval_bytes = index_interval_bytes
        self.retention_ms = retention_ms
        self.retention_bytes = retention_bytes
        self.cleanup_policy = cleanup_policy
        self.compression_type = compression_type
        self.compression_gzip_level = compression_gzip_level
        self.compression_lz4_level = compression_lz4_level
        self.compression_zstd_level = compression_zstd_level
        self.file_delete_delay_ms = file_delete_delay_ms
        self.max_message_bytes = max_message_bytes
        self.message_timestamp_type = message_timestamp_type
        self.message_timestamp_before_max_ms = message_timestamp_before_max_ms
        self.message_timestamp_after_max_ms = message_timestamp_after_max_ms
        self.record_validation = record_validation
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self.flush_messages = flush_messages
        self.flush_ms = flush_ms
        self.follower_replication_throttled_replicas = follower_replication_throttled_replicas
        self.leader_replication_throttled_replicas = leader_replication_throttled_replicas
        self.durability = durability
        self.min_insync_replicas = min_insync_replicas
        self.segment_jitter_ms = segment_jitter_ms
        self.delete_retention_ms = delete_retention_ms
        self.min_cleanable_dirty_ratio = min_cleanable_dirty_ratio
        self.min_compaction_lag_ms = min_compaction_lag_ms
        self.max_compaction_lag_ms = max_compaction_lag_ms

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "LogConfig":
        """Return the configuration for parsed settings, which have Kafka's names (such as `segment.bytes`). Settings
        without a field are ignored.
        """
        names = {name.replace("_", "."): name for name in cls.__slots__}
        return cls(**{names[key]: value for key, value in settings.items() if key in names})

    def with_min_insync_replicas(self, min_insync_replicas: int) -> "LogConfig":
        """Return the same settings with this `min.insync.replicas`."""
        if min_insync_replicas == self.min_insync_replicas:
            return self
        changed = copy(self)
        changed.min_insync_replicas = min_insync_replicas
        return changed

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def roll_after_ms(self) -> int:
        """The longest time for which records are appended to one segment. In a compacted topic it is at most
        `max.compaction.lag.ms`, because the active segment is never compacted.
        """
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy
