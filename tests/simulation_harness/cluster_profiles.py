"""The profiles of simulated lives: settings of the brokers, kinds of clients and faults."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from simulation_harness.cluster_members import MEMBER_SETTINGS
from simulation_harness.rack_reader import RACK_SETTINGS
from simulation_harness.transaction_odds import TRANSACTION_SETTINGS, Odds


class Producer(NamedTuple):
    """A kind of producer."""

    acks: int
    is_idempotent: bool


IDEMPOTENT = Producer(-1, True)
NOT_IDEMPOTENT = Producer(-1, False)
OF_LEADER = Producer(1, False)
"""It does not wait for followers."""


class Profile(NamedTuple):
    """The settings and faults of a run. With them, no acknowledged record may be lost: docs/durability.md says which
    faults may lose which data.
    """

    name: str
    settings: Mapping[str, str]
    faults: Mapping[str, float]
    """Average number of times that each fault happens in a virtual minute."""
    faults_at_once: int = 3
    """Maximum number of faults that are active at the same time."""
    brokers_min: int = 1
    producers: tuple[Producer, ...] = (IDEMPOTENT,)
    """The kinds of producers, from which the kind of each new producer is chosen at random. Empty: no producers."""
    members: int = 0
    """Number of members of a consumer group."""
    has_administrator: bool = False
    """Whether replicas are reassigned and preferred leaders elected, and a quarter of the lives use no eligible leader
    replicas."""
    topic_configs: tuple[Mapping[str, str], ...] = ({},)
    """Settings of topics. One element is chosen at random for each new topic."""
    special_topics: tuple[str, ...] = ()
    """Topics with clients of their own; see `special_topics`."""
    changes_topics: bool = False
    """Whether records are deleted, settings of topics altered and partitions added, and consumers read from
    followers."""
    transactions: Odds | None = None
    """The events in the lives of transactional clients; None if there are no such clients."""


_OF_LINKS = {
    "cut link": 2.0,
    "one-way cut": 2.0,
    "reset": 2.0,
    "stalled connections": 2.0,
    "slow network": 1.0,
    "lossy link": 2.0,
    "reordering link": 2.0,
}
_OF_STORES = {"cut store link": 1.0, "lost session": 1.0, "slow store": 1.0}
_OF_CLOCKS = {"wrong clock": 1.0, "drifting clock": 1.0}
_OF_POWER = {
    "power cut": 1.0,
    "power cut in a write": 2.0,
    "power cut behind records": 2.0,
    "power cut behind a commit": 2.0,
}
_OF_PROCESSES = {"kill": 2.0, "restart": 1.0, "pause": 2.0}

_REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "replica.lag.time.max.ms": "4000",
    "replica.fetch.max.bytes": "5000",
    "log.retention.check.interval.ms": "2000",
    **MEMBER_SETTINGS,
}
_TRANSACTIONAL = {**_REPLICATED, **RACK_SETTINGS, **TRANSACTION_SETTINGS}

_FAULTS_OF_A_CLUSTER = {
    **_OF_PROCESSES,
    **_OF_POWER,
    **_OF_LINKS,
    **_OF_STORES,
    **_OF_CLOCKS,
    "kill before an acknowledgement": 2.0,
    "kill of all brokers": 0.5,
    "isolated broker": 3.0,
    "full disk": 1.0,
    "failing disk": 1.0,
}

_FAULTS_WITH_LOST_DISKS = {
    **_OF_PROCESSES,
    "lost disk": 5.0,
    "kill before an acknowledgement": 2.0,
    "isolated broker": 3.0,
    "lost session": 1.0,
    "slow network": 1.0,
}
_FAULTS_OF_A_SYNCED_CLUSTER = {
    **_OF_PROCESSES,
    **_OF_POWER,
    **_OF_LINKS,
    "power cut of all brokers": 2.0,
    "isolated broker": 2.0,
    "failing disk": 1.0,
    "lost session": 1.0,
}

_SHORT_RETENTION = {"segment.ms": "1500", "retention.ms": "6000"}
_LIFE_OF_A_CLUSTER: dict[str, Any] = {
    "faults_at_once": 4,
    "brokers_min": 3,
    "producers": (IDEMPOTENT, IDEMPOTENT, IDEMPOTENT, NOT_IDEMPOTENT, OF_LEADER),
    "members": 2,
    "has_administrator": True,
    "topic_configs": ({}, _SHORT_RETENTION),
}
"""The fields that the profiles of several brokers have in common."""

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("calm", {}, {}),
        Profile("process", {}, {**_OF_PROCESSES, "full disk": 1.0, **_OF_CLOCKS, **_OF_LINKS}),
        Profile("store", {}, {**_OF_PROCESSES, **_OF_STORES, "reset": 1.0, **_OF_CLOCKS}),
        Profile(
            "power",
            {"durability": "fsync"},
            {**_OF_POWER, **_OF_PROCESSES, "full disk": 1.0, "failing disk": 1.0, **_OF_CLOCKS, **_OF_LINKS},
        ),
        Profile(
            "replicated",
            _REPLICATED,
            _FAULTS_OF_A_CLUSTER,
            **_LIFE_OF_A_CLUSTER,
        ),
        Profile(
            "transactions",
            _TRANSACTIONAL,
            _FAULTS_OF_A_CLUSTER,
            transactions=Odds(),
            **_LIFE_OF_A_CLUSTER,
        ),
        Profile(
            "varied",
            {**_REPLICATED, **RACK_SETTINGS, "log.cleaner.backoff.ms": "1000"},
            {
                **_OF_PROCESSES,
                **_OF_POWER,
                **_OF_LINKS,
                **_OF_STORES,
                "kill of all brokers": 0.5,
                "isolated broker": 3.0,
            },
            changes_topics=True,
            special_topics=("reborn", "latest"),
            **_LIFE_OF_A_CLUSTER,
        ),
        Profile(
            "unclean",
            _REPLICATED,
            {
                "kill": 6.0,
                "pause": 4.0,
                "kill of all brokers": 3.0,
                "isolated broker": 6.0,
                "lost session": 1.0,
                "cut store link": 1.0,
            },
            special_topics=("unclean",),
            **_LIFE_OF_A_CLUSTER,
        ),
        Profile(
            "disks",
            _REPLICATED,
            _FAULTS_WITH_LOST_DISKS,
            **_LIFE_OF_A_CLUSTER,
        ),
        Profile(
            "synced",
            {**_REPLICATED, "durability": "fsync"},
            _FAULTS_OF_A_SYNCED_CLUSTER,
            **_LIFE_OF_A_CLUSTER,
        ),
        Profile(
            "transactions-disks",
            _TRANSACTIONAL,
            _FAULTS_WITH_LOST_DISKS,
            transactions=Odds(),
            **_LIFE_OF_A_CLUSTER,
        ),
        Profile(
            "transactions-synced",
            {**_TRANSACTIONAL, "durability": "fsync"},
            _FAULTS_OF_A_SYNCED_CLUSTER,
            transactions=Odds(),
            **_LIFE_OF_A_CLUSTER,
        ),
    )
}
"""A power cut or a failing disk may destroy the only copy of a record unless `durability` is `fsync` or other brokers
have copies. So these faults are only in profiles with one of the two. A flipped bit is in no profile: a broker does not
verify the records that it sends, so a consumer finds the bit."""
