"""Create the topics of a mirror in the target cluster, add missing partitions, and copy settings from the source."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from tidelog.pipelines.mirror_cluster import MirrorCluster, Setting
from tidelog.wire.errors import ApiError

logger = logging.getLogger("tidelog.pipelines")

SETTINGS_NOT_COPIED = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)
"""Settings that belong to one cluster, or would change or refuse records that the source has accepted. Apart from
`message.timestamp.before.max.ms`, MirrorMaker leaves out the same settings."""
TIMESTAMP_TYPE = "message.timestamp.type"
CREATE_TIME = "CreateTime"
COMPARED_EVERY_S = 30.0
"""Seconds between two comparisons of the topics and settings in the source with those in the target."""


class MirrorTopics:
    """Copies topics and their settings, but no records, from the source cluster to the target cluster. `prefix` is
    added to the topics' names in the target cluster.
    """

    def __init__(
        self,
        source: MirrorCluster,
        target: MirrorCluster,
        *,
        prefix: str,
        replicas: int,
        settings_not_copied: Iterable[str] = (),
        check_missing: Callable[[str], None] = lambda topic: None,
    ) -> None:
        """`check_missing` is called with the name in the source of each topic that the target does not have. It raises
        an error if the topic must not be created.
        """
        self._source = source
        self._target = target
        self._prefix = prefix
        self._replicas = replicas
        self._not_copied = SETTINGS_NOT_COPIED | set(settings_not_copied)
        self._check_missing = check_missing
        self._partition_counts: dict[str, int] = {}
        """Number of partitions by the topic's name in the source, when the topics were last compared."""
        self._comparison_due_s = float("-inf")
        self.refused: dict[tuple[str, str, str | None], str] = {}
        """The reason why the target cluster refused a setting, by (topic in the target, name, value)."""

    def follow(self, partition_counts: Mapping[str, int]) -> None:
        """Bring the target's topics up to date. `partition_counts` has the number of partitions of each topic to
        mirror, by its name in the source.

        Missing topics and partitions are created, and settings are copied. This is done if `partition_counts` has
        changed, or if COMPARED_EVERY_S have passed since the last time. So a topic that somebody deletes in the target
        is created again, if `check_missing` allows it. The mirror itself never deletes a topic of the target, and a
        topic never loses partitions.
        """
        if self._partition_counts == dict(partition_counts) and time.monotonic() < self._comparison_due_s:
            return
        target_counts = self._target.partition_counts()
        for topic, count in sorted(partition_counts.items()):
            target_count = target_counts.get(self._prefix + topic)
            if target_count is None:
                self._check_missing(topic)
                self._target.create_topic(self._prefix + topic, count, self._replicas, {})
                logger.info("mirror_topic_created topic=%s partitions=%d", self._prefix + topic, count)
            elif target_count < count:
                self._target.grow_topic(self._prefix + topic, count)
                logger.info("mirror_topic_grew topic=%s partitions=%d", self._prefix + topic, count)
        self._copy_settings(list(partition_counts))
        self._comparison_due_s = time.monotonic() + COMPARED_EVERY_S
        self._partition_counts = dict(partition_counts)

    def _copy_settings(self, topics: list[str]) -> None:
        source_settings = self._source.settings(topics)
        target_settings = self._target.settings(self._prefix + topic for topic in source_settings)
        for topic, settings in source_settings.items():
            target_topic = self._prefix + topic
            changes = setting_changes(settings, target_settings.get(target_topic, {}), self._not_copied)
            accepted = {name: v for name, v in changes.items() if (target_topic, name, v) not in self.refused}
            self._change(target_topic, accepted)

    def _change(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Change all settings in one request. If the request is refused, change the settings one by one, so that only
        the refused settings remain unchanged.
        """
        if not changes:
            return
        try:
            self._target.change_settings(topic, changes)
            logger.info("mirror_settings_copied topic=%s settings=%s", topic, ",".join(sorted(changes)))
        except ApiError as error:
            if len(changes) > 1:
                for name, value in changes.items():
                    self._change(topic, {name: value})
                return
            [(name, value)] = changes.items()
            self.refused[topic, name, value] = str(error)
            logger.warning("mirror_setting_refused topic=%s setting=%s value=%s reason=%s", topic, name, value, error)


def setting_changes(
    source: Mapping[str, Setting], target: Mapping[str, Setting], not_copied: Iterable[str]
) -> dict[str, str | None]:
    """Return the settings to change on the target's topic; None for a setting to remove.

    A setting is removed from the target's topic only if the source cluster knows a setting with this name and the
    source's topic does not set it. Records must keep their timestamps, so the timestamp type becomes CreateTime.
    """
    excluded = set(not_copied)
    changes: dict[str, str | None] = {}
    for name, setting in source.items():
        if name in excluded:
            continue
        present = target.get(name)
        is_set_on_target = present is not None and present.is_set
        if setting.is_set and not (is_set_on_target and present is not None and present.value == setting.value):
            changes[name] = setting.value
        elif not setting.is_set and is_set_on_target:
            changes[name] = None
    timestamp_type = target.get(TIMESTAMP_TYPE)
    if timestamp_type is not None and timestamp_type.value != CREATE_TIME:
        changes[TIMESTAMP_TYPE] = CREATE_TIME
    return changes
