"""Settings of single groups. A group need not exist to have some; the broker's `group.*` stand for those it has not."""

from tidelog.config.key import AtLeast, Key, Type

KEYS: tuple[Key, ...] = (
    Key(
        "consumer.session.timeout.ms",
        Type.INT,
        "45000",
        AtLeast(1),
        doc="A member of the consumer group is removed when no heartbeat came for this long.",
        effect=True,
        synonyms=(("group.consumer.session.timeout.ms", 1),),
    ),
    Key(
        "consumer.heartbeat.interval.ms",
        Type.INT,
        "5000",
        AtLeast(1),
        doc="Time between heartbeats that members of the consumer group are told.",
        effect=True,
        synonyms=(("group.consumer.heartbeat.interval.ms", 1),),
    ),
    Key(
        "consumer.assignment.interval.ms",
        Type.INT,
        "1000",
        AtLeast(0),
        doc="A new assignment of the consumer group is made at most this often; 0: whenever one is needed.",
        effect=True,
        synonyms=(("group.consumer.assignment.interval.ms", 1),),
    ),
)


def limits_of(name: str) -> tuple[str, str]:
    """The broker's settings with the least and the most that a group's `name` may be."""
    kind, _, what = name.partition(".")
    return f"group.{kind}.min.{what}", f"group.{kind}.max.{what}"
