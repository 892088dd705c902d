"""The state that all requests to the consumer groups of one coordinator share: groups, settings, topics, timers."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.coordinator.consumer.settings import (
    ASSIGNMENT_INTERVAL_KEY,
    HEARTBEAT_INTERVAL_KEY,
    SESSION_TIMEOUT_KEY,
    ConsumerSettings,
)
from tidelog.coordinator.consumer.state import ConsumerGroup
from tidelog.coordinator.consumer.timers import Timers
from tidelog.coordinator.deadlines import Deadlines
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.settings import GroupSettings

if TYPE_CHECKING:
    from tidelog.coordinator.group.durable import DurableGroups
    from tidelog.metadata.image import MetadataImage


class GroupContext:
    """The shared state. A new coordinator reads only `durable` from the log. The classic groups, the timers and
    `groups_with_current_epoch` are soft state: a new coordinator builds them anew.
    """

    __slots__ = (
        "classic_groups",
        "deadlines",
        "durable",
        "groups_with_current_epoch",
        "image_now",
        "schedule_search",
        "settings",
        "timers",
    )

    def __init__(
        self,
        settings: GroupSettings,
        durable: "DurableGroups",
        classic_groups: dict[str, ClassicGroup],
        deadlines: Deadlines,
        image_now: "Callable[[], MetadataImage]",
        timers: Timers,
        schedule_search: Callable[[str, int], None],
    ) -> None:
        self.settings = settings
        self.durable = durable
        self.classic_groups = classic_groups
        """The soft state of the classic groups that have members or had members recently."""
        self.deadlines = deadlines
        self.image_now = image_now
        self.timers = timers
        self.schedule_search = schedule_search
        """Function that schedules a search for the topics of a group's new regular expressions. Its arguments are
        the group id and the monotonic time of the search in milliseconds."""
        self.groups_with_current_epoch: dict[str, None] = {}
        """Ids of the groups whose epoch fits the current topics: the metadata hash of the epoch has been compared with
        the topics, and the topics have not changed since."""

    @property
    def consumer(self) -> ConsumerSettings:
        return self.settings.consumer

    def group(self, group_id: str) -> ConsumerGroup | None:
        durable = self.durable.by_id.get(group_id)
        return None if durable is None else durable.consumer

    # Settings of one group

    def session_timeout_ms(self, group_id: str) -> int:
        return self._setting_of(group_id, SESSION_TIMEOUT_KEY, self.consumer.session_timeout_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self._setting_of(group_id, HEARTBEAT_INTERVAL_KEY, self.consumer.heartbeat_interval_ms)

    def assignment_interval_ms(self, group_id: str) -> int:
        return self._setting_of(group_id, ASSIGNMENT_INTERVAL_KEY, self.consumer.assignment_interval_ms)

    def _setting_of(self, group_id: str, key: str, default: int) -> int:
        own: Mapping[str, str] | None = self.image_now().group_configs.get(group_id)
        return default if own is None else self.consumer.value_for_group(key, own, default)
