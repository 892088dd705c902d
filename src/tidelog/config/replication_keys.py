"""Broker settings of replication: fetchers, the ISR, throttles, and consumers that fetch from followers."""

from tidelog.config.key import AtLeast, Key, Type

INT = Type.INT
LONG = Type.LONG
STRING = Type.STRING

KEYS: tuple[Key, ...] = (
    Key(
        "num.replica.fetchers",
        INT,
        "1",
        AtLeast(1),
        doc="Number of connections that this broker opens to each of the other brokers, to fetch the partitions that "
        "it follows.",
        effect=True,
    ),
    Key(
        "replica.fetch.backoff.ms",
        INT,
        "1000",
        AtLeast(0),
        doc="Pause of a follower after a failed fetch.",
        effect=True,
        read_only=True,
    ),
    Key(
        "replica.fetch.max.bytes",
        INT,
        "1048576",
        AtLeast(0),
        doc="Limit on the bytes of one partition in one fetch of a follower. The first batch of the whole response is "
        "sent even if it is larger.",
        effect=True,
        read_only=True,
    ),
    Key(
        "replica.fetch.min.bytes",
        INT,
        "1",
        doc="A follower's fetch waits for this many bytes, for at most replica.fetch.wait.max.ms.",
        effect=True,
        read_only=True,
    ),
    Key(
        "replica.fetch.response.max.bytes",
        INT,
        "10485760",
        AtLeast(0),
        doc="Limit on the bytes of all partitions in one fetch of a follower. The first batch of the whole response is "
        "sent even if it is larger.",
        effect=True,
        read_only=True,
    ),
    Key(
        "replica.fetch.wait.max.ms",
        INT,
        "500",
        doc="Longest wait of a follower's fetch for records. It should be shorter than replica.lag.time.max.ms.",
        effect=True,
        read_only=True,
    ),
    Key(
        "replica.lag.time.max.ms",
        LONG,
        "30000",
        doc="A follower that has not caught up with its leader within this time leaves the in-sync replicas.",
        effect=True,
        read_only=True,
    ),
    Key(
        "replica.selector.class",
        STRING,
        None,
        doc="With org.apache.kafka.common.replica.RackAwareReplicaSelector, consumers that set client.rack fetch from "
        "a replica in their rack. If this setting names another class, a broker of a cluster does not start.",
        effect=True,
        read_only=True,
    ),
    Key(
        "replica.socket.timeout.ms",
        INT,
        "30000",
        doc="Time limit of a follower's request. For a fetch, replica.fetch.wait.max.ms is added to it.",
        effect=True,
        read_only=True,
    ),
    Key(
        "replication.quota.window.num",
        INT,
        "11",
        AtLeast(1),
        doc="Number of samples over which the rate of throttled replication is computed.",
        effect=True,
        read_only=True,
    ),
    Key(
        "replication.quota.window.size.seconds",
        INT,
        "1",
        AtLeast(1),
        doc="Length of each of the replication.quota.window.num samples, in seconds.",
        effect=True,
        read_only=True,
    ),
    Key(
        "follower.replication.throttled.rate",
        LONG,
        None,
        AtLeast(0),
        doc="Limit on the bytes per second that this broker fetches for the replicas in "
        "follower.replication.throttled.replicas.",
        effect=True,
        hidden=True,
    ),
    Key(
        "leader.replication.throttled.rate",
        LONG,
        None,
        AtLeast(0),
        doc="Limit on the bytes per second that this broker sends from the replicas in "
        "leader.replication.throttled.replicas.",
        effect=True,
        hidden=True,
    ),
)
