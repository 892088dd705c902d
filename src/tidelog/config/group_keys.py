"""Settings of single groups. A group's settings can be set before the group exists. Most of their defaults are the
values of broker settings `group.*`.
"""

import re

from tidelog.config.key import AtLeast, Key, OneOf, Type, Validator, Value

_DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?[0-9]+)D)?"
    r"(?P<time>T(?:(?P<hours>[-+]?[0-9]+)H)?(?:(?P<minutes>[-+]?[0-9]+)M)?"
    r"(?:(?P<seconds>[-+]?[0-9]+)(?:[.,](?P<fraction>[0-9]{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_SECONDS_IN = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
_NUMBER_LENGTH_MAX = 20
"""Upper bound on the characters of a number in a duration. A longer number does not fit into 64 bits, unless it has
leading zeros. It is refused before it is converted, because the conversion of a very long text takes a long time."""
BY_DURATION = "by_duration:"


def is_duration(text: str) -> bool:
    """Return whether Java's `Duration.parse` accepts the text and the duration is not negative."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return False
    given_units = {unit: match[unit] for unit in _SECONDS_IN if match[unit] is not None}
    time_is_empty = match["time"] is not None and len(match["time"]) == 1  # a "T" without hours, minutes and seconds
    if not given_units or time_is_empty:
        return False
    if any(len(number) > _NUMBER_LENGTH_MAX for number in given_units.values()):
        return False
    seconds_by_unit = {unit: int(number) * _SECONDS_IN[unit] for unit, number in given_units.items()}
    fraction = int((match["fraction"] or "").ljust(9, "0"))
    nanoseconds = sum(seconds_by_unit.values()) * 1_000_000_000
    nanoseconds += -fraction if (match["seconds"] or "").startswith("-") else fraction
    if match["sign"] == "-":
        nanoseconds = -nanoseconds
    fits = all(-(1 << 63) <= part < 1 << 63 for part in seconds_by_unit.values())
    return fits and 0 <= nanoseconds < (1 << 63) * 1_000_000_000


class ShareOffsetReset(Validator):
    """The position where a share group begins to read: the start or the end of the log, or a duration (ISO 8601)
    before now.
    """

    __slots__ = ()

    def refusal(self, value: Value) -> tuple[object, str] | None:
        assert isinstance(value, str)
        if value in ("earliest", "latest"):
            return None
        if value.startswith(BY_DURATION) and is_duration(value.removeprefix(BY_DURATION)):
            return None
        return value, "takes earliest, latest or by_duration:PnDTnHnMn.nS"


KEYS: tuple[Key, ...] = (
    Key(
        "consumer.session.timeout.ms",
        Type.INT,
        "45000",
        AtLeast(1),
        doc="A member of the consumer group is removed after this time without a heartbeat.",
        effect=True,
        synonyms=(("group.consumer.session.timeout.ms", 1),),
    ),
    Key(
        "consumer.heartbeat.interval.ms",
        Type.INT,
        "5000",
        AtLeast(1),
        doc="Interval between heartbeats that the broker requests from the members of the consumer group.",
        effect=True,
        synonyms=(("group.consumer.heartbeat.interval.ms", 1),),
    ),
    Key(
        "consumer.assignment.interval.ms",
        Type.INT,
        "1000",
        AtLeast(0),
        doc="Minimum time between two new assignments of the consumer group; 0 for no minimum.",
        effect=True,
        synonyms=(("group.consumer.assignment.interval.ms", 1),),
    ),
    Key(
        "share.session.timeout.ms",
        Type.INT,
        "45000",
        AtLeast(1),
        doc="A member of the share group is removed after this time without a heartbeat.",
        synonyms=(("group.share.session.timeout.ms", 1),),
    ),
    Key(
        "share.heartbeat.interval.ms",
        Type.INT,
        "5000",
        AtLeast(1),
        doc="Interval between heartbeats that the broker requests from the members of the share group.",
        synonyms=(("group.share.heartbeat.interval.ms", 1),),
    ),
    Key(
        "share.assignment.interval.ms",
        Type.INT,
        "1000",
        AtLeast(0),
        doc="Minimum time between two new assignments of the share group.",
        synonyms=(("group.share.assignment.interval.ms", 1),),
    ),
    Key(
        "share.record.lock.duration.ms",
        Type.INT,
        "30000",
        AtLeast(1000),
        doc="How long a record stays locked for the share group's member that fetched it.",
        synonyms=(("group.share.record.lock.duration.ms", 1),),
    ),
    Key(
        "share.delivery.count.limit",
        Type.INT,
        "5",
        AtLeast(2),
        doc="Limit on the deliveries of one record to members of the share group.",
        synonyms=(("group.share.delivery.count.limit", 1),),
    ),
    Key(
        "share.partition.max.record.locks",
        Type.INT,
        "2000",
        AtLeast(100),
        doc="Limit on the locked records of one partition in the share group.",
        synonyms=(("group.share.partition.max.record.locks", 1),),
    ),
    Key(
        "share.auto.offset.reset",
        Type.STRING,
        "latest",
        ShareOffsetReset(),
        doc="Offset at which the share group begins to read a partition.",
    ),
    Key(
        "share.isolation.level",
        Type.STRING,
        "read_uncommitted",
        OneOf(("read_committed", "read_uncommitted")),
        doc="Whether the share group reads records of open and aborted transactions.",
    ),
    Key(
        "share.renew.acknowledge.enable",
        Type.BOOLEAN,
        "true",
        doc="Whether members of the share group may extend the lock on a record.",
    ),
    Key(
        "streams.session.timeout.ms",
        Type.INT,
        "45000",
        AtLeast(1),
        doc="A member of the streams group is removed after this time without a heartbeat.",
        synonyms=(("group.streams.session.timeout.ms", 1),),
    ),
    Key(
        "streams.heartbeat.interval.ms",
        Type.INT,
        "5000",
        AtLeast(1),
        doc="Interval between heartbeats that the broker requests from the members of the streams group.",
        synonyms=(("group.streams.heartbeat.interval.ms", 1),),
    ),
    Key(
        "streams.assignment.interval.ms",
        Type.INT,
        "1000",
        AtLeast(0),
        doc="Minimum time between two new assignments of the streams group.",
        synonyms=(("group.streams.assignment.interval.ms", 1),),
    ),
    Key(
        "streams.initial.rebalance.delay.ms",
        Type.INT,
        "3000",
        AtLeast(0),
        doc="How long a new streams group waits for more members.",
        synonyms=(("group.streams.initial.rebalance.delay.ms", 1),),
    ),
    Key(
        "streams.num.standby.replicas",
        Type.INT,
        "0",
        AtLeast(0),
        doc="Standby copies of each task of the streams group.",
        synonyms=(("group.streams.num.standby.replicas", 1),),
    ),
)

_SETTINGS_WITHOUT_LIMITS = ("share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable")


def limits_of(name: str) -> tuple[str | None, str | None]:
    """Return the names of the broker settings that limit the group setting `name`: the minimum and the maximum.

    None means that the limit does not exist.
    """
    group_type, _, setting = name.partition(".")
    if name in _SETTINGS_WITHOUT_LIMITS or setting == "initial.rebalance.delay.ms":
        return None, None
    if setting == "num.standby.replicas":
        return None, "group.streams.max.standby.replicas"
    return f"group.{group_type}.min.{setting}", f"group.{group_type}.max.{setting}"
