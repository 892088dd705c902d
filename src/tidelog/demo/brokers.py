"""The brokers of the sale: one broker, or a cluster. One broker of a cluster is killed and started again."""

import time
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidelog.demo.orders import EVENTS, ORDERS
from tidelog.testing import Broker, Cluster

KILL_AT_PERCENT = 60
"""The broker is killed when this percentage of the orders is settled."""
DOWN_S = 4.0
"""Time, in seconds, after which the killed broker is started again."""
ELECTION_TIMEOUT_S = 30
"""Time limit, in seconds, until the partitions of the killed broker have other leaders."""
SESSION_MS = 9000
"""Session timeout of the brokers, in milliseconds: Tidelog's default. The default of `Cluster` is shorter, and on a
busy machine a live broker may exceed it."""
POLL_S = 0.02
LEADERLESS = -1


class Takeover(NamedTuple):
    """The consequences of the kill of one broker."""

    killed: int
    new_leaders: dict[int, int]
    """For each new leader: the number of partitions that it took over from the killed broker."""
    seconds: float
    """Time from the kill until all these partitions had a new leader."""

    def __str__(self) -> str:
        moves = ", ".join(f"{count} to broker {broker}" for broker, count in self.new_leaders.items())
        count = sum(self.new_leaders.values())
        return f"broker {self.killed} killed with -9: {count} leaders moved in {self.seconds:.1f} s ({moves})"


def brokers_of(count: int, directory: Path, settings: dict[str, object]) -> Broker | Cluster:
    """Return one broker, or a cluster, with the data in `directory`. Nothing is started yet."""
    if count == 1:
        return Broker(process=True, data=directory / "broker", settings=settings)
    return Cluster(count, data=directory / "cluster", settings=settings | {"broker.session.timeout.ms": SESSION_MS})


class BrokerFault:
    """Kills the busiest broker of a cluster in the middle of the sale, and starts it again.

    If there is only one broker, this class does nothing.
    """

    def __init__(self, brokers: Broker | Cluster, client_settings: dict[str, Any]) -> None:
        self._cluster = brokers if isinstance(brokers, Cluster) else None
        self._admin = AdminClient({**client_settings, "bootstrap.servers": brokers.bootstrap})
        self._start_at_s = 0.0
        self.takeover: Takeover | None = None

    @property
    def is_over(self) -> bool:
        """Whether the broker was killed and works again, or there is only one broker."""
        cluster = self._cluster
        return cluster is None or (self.takeover is not None and len(cluster.running) == len(cluster.numbers))

    def states(self) -> dict[str, str]:
        """Return "works" or "killed" for each broker of a cluster, by its number."""
        cluster = self._cluster
        if cluster is None:
            return {}
        return {str(number): "works" if number in cluster.running else "killed" for number in cluster.numbers}

    def step(self, settled_percent: float) -> str:
        """Kill the broker, or start it again, if this is due. Return a line about the action; "" if nothing was done.

        Raises TimeoutError if partitions still have no new leader when ELECTION_TIMEOUT_S have passed since the kill,
        and BrokerFailedError if the broker does not start.
        """
        cluster = self._cluster
        if cluster is None or self.is_over:
            return ""
        if self.takeover is None:
            if settled_percent < KILL_AT_PERCENT:
                return ""
            self.takeover = self._kill_busiest(cluster)
            if self.takeover is None:
                return ""  # the next call tries again
            self._start_at_s = time.monotonic() + DOWN_S
            return str(self.takeover)
        if time.monotonic() < self._start_at_s:
            return ""
        cluster.start(self.takeover.killed)
        return f"broker {self.takeover.killed} started again"

    def _kill_busiest(self, cluster: Cluster) -> Takeover | None:
        """Kill the broker that leads the most partitions of the sale, and wait until these have other leaders. If the
        leaders of a topic are not known, kill no broker and return None.
        """
        leaders = self._leaders()
        if {topic for topic, _ in leaders} != {ORDERS, EVENTS}:
            return None
        victim = max(cluster.numbers, key=list(leaders.values()).count)
        led_partitions = [partition for partition, leader in leaders.items() if leader == victim]
        began = time.monotonic()
        cluster.kill(victim)
        while True:
            leaders = self._leaders()
            seconds = time.monotonic() - began
            new_leaders = [leaders.get(partition, LEADERLESS) for partition in led_partitions]
            if not {LEADERLESS, victim} & set(new_leaders):
                return Takeover(victim, {n: new_leaders.count(n) for n in sorted(set(new_leaders))}, seconds)
            if seconds > ELECTION_TIMEOUT_S:
                raise TimeoutError(f"partitions of broker {victim} still have no new leader after {seconds:.0f} s")
            time.sleep(POLL_S)

    def _leaders(self) -> dict[tuple[str, int], int]:
        """Return the leader of every partition of the topics ORDERS and EVENTS. A topic is omitted if no broker answers
        the request for this topic.
        """
        leaders: dict[tuple[str, int], int] = {}
        for topic in (ORDERS, EVENTS):
            try:
                partitions = self._admin.list_topics(topic, timeout=5).topics[topic].partitions
            except KafkaException:
                continue
            leaders |= {(topic, number): partition.leader for number, partition in partitions.items()}
        return leaders
