"""Broker settings of a cluster of several brokers: their leases and heartbeats, controlled shutdown, leaders."""

from tidelog.config.key import AtLeast, Key, Type

BOOLEAN = Type.BOOLEAN
INT = Type.INT
LONG = Type.LONG

KEYS: tuple[Key, ...] = (
    Key(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        doc="Whether the controller of a cluster makes the preferred leaders lead their partitions again.",
        effect=True,
        read_only=True,
    ),
    Key(
        "broker.heartbeat.interval.ms",
        INT,
        "2000",
        doc="Pause between two heartbeats of a broker to the controller of its cluster.",
        effect=True,
        read_only=True,
    ),
    Key(
        "broker.session.timeout.ms",
        INT,
        "9000",
        doc="Term of the leases in a metadata store that other processes can reach. A value below 2000 means 2000. "
        "If a broker does not renew its lease within this time, it is fenced. If the controller does not renew its "
        "lease, another broker becomes the controller. A controlled shutdown also takes at most this time.",
        effect=True,
        read_only=True,
    ),
    Key(
        "controlled.shutdown.enable",
        BOOLEAN,
        "true",
        doc="Whether a broker of a cluster hands over the leadership of its partitions before it stops.",
        effect=True,
        read_only=True,
    ),
    Key(
        "initial.broker.registration.timeout.ms",
        INT,
        "60000",
        doc="Time limit for each of two waits when a broker of a cluster starts: until it is registered, and then "
        "until it is no longer fenced. If one of them takes longer, the start fails.",
        effect=True,
        read_only=True,
    ),
    Key(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        AtLeast(1),
        doc="Time between two checks for partitions that their preferred leaders do not lead.",
        effect=True,
        read_only=True,
    ),
)
