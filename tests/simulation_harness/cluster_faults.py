"""Faults of a simulated cluster. The seed determines which faults happen and when. Each fault ends after a limited
time.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from simulation_harness.cluster_ledger import Ledger
from tidelog.simulation.cluster import SimCluster, SimNode
from tidelog.simulation.network import Conditions

ROOM_BYTES_MAX = 20_000
"""Maximum number of free bytes that a disk has when it is made full."""

PROMISE_S = 4.0
"""Time, in seconds, that a fault waits for the confirmation after which it shall happen."""


class Profile(NamedTuple):
    """The settings and faults of a run. With them, no acknowledged record may be lost: docs/durability.md says which
    faults may lose which data.
    """

    name: str
    settings: Mapping[str, str]
    faults: Mapping[str, float]
    """Average number of times that each fault happens in a virtual minute."""


class Faults:
    """Applies faults to a cluster until `until_s` of virtual time. When `run` returns, all faults have ended."""

    def __init__(self, cluster: SimCluster, profile: Profile, ledger: Ledger, clients: list[str]) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = self._world.rng("faults")
        self._profile = profile
        self._ledger = ledger
        self._clients = clients

    async def run(self, until_s: float) -> None:
        names = list(self._profile.faults)
        rates = list(self._profile.faults.values())
        loop, sleep = self._world.loop, self._world.host("faults").runtime.tasks.sleep
        while names:
            pause_s = self._rng.expovariate(sum(rates) / 60)
            if loop.time() + pause_s >= until_s:
                break
            await sleep(pause_s)
            name = self._rng.choices(names, rates)[0]
            self._world.trace.note("*", "fault", name)
            self._ledger.coverage[name] += 1
            await FAULTS[name](self, sleep, self._rng)

    def _node(self) -> SimNode:
        return self._rng.choice(self._cluster.nodes)

    def _client(self) -> str:
        return self._rng.choice(self._clients)

    async def kill(self, sleep: "Sleep", rng: random.Random) -> None:
        node = self._node()
        node.kill()
        await sleep(rng.choice((0.0, 0.5, 5.0)))
        await node.start()

    async def restart(self, sleep: "Sleep", rng: random.Random) -> None:
        node = self._node()
        await node.stop()
        await sleep(rng.choice((0.0, 2.0)))
        await node.start()

    async def cut_power(self, sleep: "Sleep", rng: random.Random) -> None:
        node = self._node()
        node.cut_power()
        await sleep(rng.choice((0.1, 5.0)))
        await node.start()

    async def cut_power_behind_records(self, sleep: "Sleep", rng: random.Random) -> None:
        await self._cut_power_behind("records", sleep, rng)

    async def cut_power_behind_commit(self, sleep: "Sleep", rng: random.Random) -> None:
        await self._cut_power_behind("commit", sleep, rng)

    async def _cut_power_behind(self, what: str, sleep: "Sleep", rng: random.Random) -> None:
        """Cut the power at the moment at which a client receives a confirmation, if it receives one within
        PROMISE_S.
        """
        promised = self._world.loop.create_future()
        self._ledger.on_promise[what] = lambda: promised.set_result(None)
        done, _ = await asyncio.wait([promised], timeout=PROMISE_S)
        if done:
            await self.cut_power(sleep, rng)
        else:
            del self._ledger.on_promise[what]

    async def cut_link(self, sleep: "Sleep", rng: random.Random) -> None:
        self._world.network.partition(self._node().host.name, self._client())
        await sleep(rng.uniform(0.1, 8.0))
        self._world.network.heal()

    async def cut_one_way(self, sleep: "Sleep", rng: random.Random) -> None:
        ends = [self._node().host.name, self._client()]
        rng.shuffle(ends)
        self._world.network.partition_one_way(*ends)
        await sleep(rng.uniform(0.1, 8.0))
        self._world.network.heal()

    async def reset(self, sleep: "Sleep", rng: random.Random) -> None:
        self._world.network.reset_connections(self._node().host.name, self._client())
        await sleep(rng.uniform(0.0, 1.0))

    async def slow_network(self, sleep: "Sleep", rng: random.Random) -> None:
        self._world.network.conditions = Conditions(latency_s=(0.01, 0.3), slow_chance=0.2, slow_s=(0.3, 2.0))
        await sleep(rng.uniform(1.0, 6.0))
        self._world.network.conditions = Conditions()

    async def full_disk(self, sleep: "Sleep", rng: random.Random) -> None:
        medium = self._node().host.disk.medium
        medium.capacity_bytes = medium.used_bytes() + rng.randrange(ROOM_BYTES_MAX)
        await sleep(rng.uniform(0.5, 8.0))
        medium.capacity_bytes = None

    async def wrong_clock(self, sleep: "Sleep", rng: random.Random) -> None:
        clock = self._node().host.clock
        clock.wall_offset_ms += rng.choice((-3_600_000, -1000, 1000, 60_000))
        await sleep(rng.uniform(0.0, 5.0))


Sleep = Callable[[float], Awaitable[None]]

FAULTS: dict[str, Callable[[Faults, Sleep, random.Random], Awaitable[None]]] = {
    "kill": Faults.kill,
    "restart": Faults.restart,
    "power cut": Faults.cut_power,
    "power cut behind records": Faults.cut_power_behind_records,
    "power cut behind a commit": Faults.cut_power_behind_commit,
    "cut link": Faults.cut_link,
    "one-way cut": Faults.cut_one_way,
    "reset": Faults.reset,
    "slow network": Faults.slow_network,
    "full disk": Faults.full_disk,
    "wrong clock": Faults.wrong_clock,
}

_OF_LINKS = {"cut link": 2.0, "one-way cut": 2.0, "reset": 3.0, "slow network": 1.0}

PROFILES = {
    profile.name: profile
    for profile in (
        Profile("calm", {}, {}),
        Profile("process", {}, {"kill": 4.0, "restart": 1.0, "full disk": 1.0, "wrong clock": 1.0, **_OF_LINKS}),
        Profile(
            "power",
            {"durability": "fsync"},
            {
                "power cut": 2.0,
                "power cut behind records": 2.0,
                "power cut behind a commit": 2.0,
                "kill": 1.0,
                "restart": 1.0,
                "full disk": 1.0,
                "wrong clock": 1.0,
                **_OF_LINKS,
            },
        ),
    )
}
