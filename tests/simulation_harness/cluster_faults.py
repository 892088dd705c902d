"""Faults of a simulated cluster. The seed determines which faults happen and when. Several faults may be active at the
same time. Each fault ends after a limited time.
"""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from simulation_harness.cluster_checks import ClusterChecks
from simulation_harness.cluster_inspection import leads, needs_restart
from simulation_harness.cluster_ledger import Ledger, Violation
from simulation_harness.cluster_profiles import Profile
from tidelog.simulation import shared_store
from tidelog.simulation.cluster import DATA, SimCluster, SimNode
from tidelog.simulation.medium import SECTOR_BYTES, PowerCutOdds
from tidelog.simulation.network import Conditions

ROOM_BYTES_MAX = 20_000
"""Maximum number of free bytes that a disk has when it is made full."""

PROMISE_S = 4.0
"""Time, in seconds, that a fault waits for the confirmation after which it shall happen."""

START_WITHIN_S = 60.0
"""Time, in seconds after the last fault began, within which every broker must start."""

START_AGAIN_S = 1.0
"""Delay, in seconds, before the next attempt to start a broker whose start failed because of another fault."""

SUPERVISION_INTERVAL_S = 1.0

WRITES = "writes"
"""The resource of a fault that waits for a write."""

POWER = "power"
"""The resource of a fault that may lose unsynced bytes. Only one broker at a time may lose them."""


class Faults:
    """Applies faults to a cluster until `until_s` of virtual time. When `run` returns, all faults have ended.

    The kind of the first fault is the seed modulo the number of kinds. Therefore consecutive seeds begin with different
    kinds. If their number is the number of kinds, they begin with each kind once.
    """

    def __init__(
        self, cluster: SimCluster, profile: Profile, ledger: Ledger, checks: ClusterChecks, clients: list[str]
    ) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = self._world.rng("faults")
        self._profile = profile
        self._ledger = ledger
        self._checks = checks
        self._clients = clients
        self._sleep = self._world.host("faults").runtime.tasks.sleep
        self._in_use: dict[str, None] = {}
        """Resources that an active fault uses: two faults never affect the same process, disk, clock or link."""
        self._active: dict[asyncio.Task[None], None] = {}
        self._start_until_s = float("inf")
        self._unsynced_copies_count = profile.settings.get("durability") != "fsync"
        """Whether a record is acknowledged when enough brokers have it, although no disk may have it."""

    async def run(self, until_s: float) -> None:
        names = list(self._profile.faults)
        rates = list(self._profile.faults.values())
        loop = self._world.loop
        self._start_until_s = until_s + START_WITHIN_S
        first = names[self._world.seed % len(names)] if names else None
        try:
            while names:
                pause_s = self._rng.expovariate(sum(rates) / 60)
                if loop.time() + pause_s >= until_s:
                    break
                await self._sleep(pause_s)
                self._raise_failure()
                name, first = first or self._rng.choices(names, rates)[0], None
                if len(self._active) < self._profile.faults_at_once:
                    self._begin(name)
            while self._active:
                await asyncio.wait(list(self._active), return_when=asyncio.FIRST_COMPLETED)
                self._raise_failure()
        finally:
            for task in self._active:
                task.cancel()

    async def supervise(self) -> None:
        """Restart every broker that has ended its work because of a fault, as a supervisor does. Runs until it is
        cancelled.
        """
        while True:
            await self._sleep(SUPERVISION_INTERVAL_S)
            if POWER in self._in_use and self._unsynced_copies_count:
                continue  # a restarted broker leaves the ISR and the ELR, and the one without power may lose records
            for node in self._cluster.nodes:
                process = f"{node.host.name} process"
                if process not in self._in_use and node.running and needs_restart(node):
                    self._in_use[process] = None
                    self._ledger.coverage["restarts by supervisor"] += 1
                    self._kill(node)
                    await self._start(node)
                    del self._in_use[process]

    def _begin(self, name: str) -> None:
        node, client = self._rng.choice(self._cluster.nodes), self._rng.choice(self._clients)
        fault = FAULTS[name]
        nodes = self._cluster.nodes if fault.affects_all_brokers else [node]
        resources = list(
            dict.fromkeys(part.format(node=each.host.name, client=client) for part in fault.resources for each in nodes)
        )
        if not all(each.running for each in self._cluster.nodes if f"{each.host.name} process" in resources):
            return
        if any(resource in self._in_use for resource in resources):
            return
        if POWER in resources and self._unsynced_copies_count and self._checks.not_converged() is not None:
            return  # this broker may hold the only copy of a record
        self._ledger.coverage[name] += 1
        if self._active:
            self._ledger.coverage["faults at once"] += 1
        self._world.trace.note(node.host.name, "fault", f"{name} begins")
        self._in_use.update(dict.fromkeys(resources))
        rng = random.Random(self._rng.getrandbits(64))

        async def apply() -> None:
            await fault.apply(self, node, client, rng)
            self._world.trace.note(node.host.name, "fault", f"{name} ends")
            for resource in resources:
                del self._in_use[resource]

        self._active[asyncio.ensure_future(apply())] = None

    def _raise_failure(self) -> None:
        for task in [task for task in self._active if task.done()]:
            del self._active[task]
            task.result()

    # Starting and ending processes

    def _kill(self, node: SimNode) -> None:
        if node.running:
            self._checks.check_node(node)
            node.kill()

    async def _start(self, node: SimNode) -> None:
        """Start the broker, and again if the start fails, since other faults may be active on this host."""
        while True:
            try:
                await node.start()
                return
            except Exception as error:  # one line of many kinds of errors; Liveness limits the number of attempts
                self._world.trace.note(node.host.name, "start failed", f"{type(error).__name__}: {error}")
                self._ledger.coverage["starts failed"] += 1
                node.kill()
                if self._world.loop.time() > self._start_until_s:
                    raise Violation("Liveness", f"{node.host.name} does not start: {error}") from error
                await self._sleep(START_AGAIN_S)

    async def kill(self, node: SimNode, _client: str, rng: random.Random) -> None:
        self._kill(node)
        await self._sleep(rng.choice((0.0, 0.5, 5.0)))
        await self._start(node)

    async def kill_all(self, _node: SimNode, _client: str, rng: random.Random) -> None:
        for node in self._cluster.nodes:
            self._kill(node)
            await self._sleep(rng.choice((0.0, 0.0, 0.3)))
        await asyncio.gather(*(self._start(node) for node in self._cluster.nodes))

    async def kill_before_acknowledgement(self, node: SimNode, _client: str, rng: random.Random) -> None:
        """Kill a leader when one of its followers has written a batch, so that the leader may not acknowledge it any
        more.
        """
        happened = self._world.loop.create_future()
        disks = [other.host.disk for other in self._cluster.nodes if other is not node]

        def notice(operation: str, path: str) -> None:
            if operation == "write" and path.endswith(".log") and leads(node, path.rsplit("/", 2)[1]):
                stop()
                happened.set_result(None)

        def stop() -> None:
            for disk in disks:
                disk.on_operation = None

        for disk in disks:
            disk.on_operation = notice
        done, _ = await asyncio.wait([happened], timeout=PROMISE_S)
        stop()
        if done:
            await asyncio.sleep(rng.uniform(0.0, 0.003))
            await self.kill(node, _client, rng)

    async def restart(self, node: SimNode, _client: str, rng: random.Random) -> None:
        try:
            await node.stop()
        except Exception as error:  # another fault is active on this host: the supervisor kills the process
            self._world.trace.note(node.host.name, "stop failed", f"{type(error).__name__}: {error}")
            self._ledger.coverage["stops failed"] += 1
            self._kill(node)
        await self._sleep(rng.choice((0.0, 2.0)))
        await self._start(node)

    def _cut_power(self, node: SimNode, odds: PowerCutOdds | None = None) -> None:
        self._checks.check_node(node)
        node.cut_power(odds)
        for effect, count in node.host.disk.medium.power_cut_effects.items():
            self._ledger.coverage[effect] += count

    async def cut_power(self, node: SimNode, _client: str, rng: random.Random) -> None:
        self._cut_power(node)
        await self._sleep(rng.choice((0.1, 5.0)))
        await self._start(node)

    async def cut_power_of_all(self, _node: SimNode, _client: str, rng: random.Random) -> None:
        for node in self._cluster.nodes:
            self._cut_power(node)
        await self._sleep(rng.choice((0.1, 5.0)))
        await asyncio.gather(*(self._start(node) for node in self._cluster.nodes))

    async def cut_power_in_write(self, node: SimNode, _client: str, rng: random.Random) -> None:
        """Cut the power during a write to a record file that is longer than a sector. In half of the cases any part of
        it may be on the disk.
        """
        odds = rng.choice((None, PowerCutOdds(keep=0.0, torn=1.0, wrong_size=0.0)))
        happened = self._world.loop.create_future()
        disk = node.host.disk

        def cut(operation: str, path: str) -> None:
            written = disk.medium.inode(path).unsynced[-1][1] if operation == "write" else None
            if path.endswith(".log") and written is not None and len(written) > SECTOR_BYTES:
                disk.on_operation = None
                happened.set_result(None)
                self._cut_power(node, odds)

        disk.on_operation = cut
        done, _ = await asyncio.wait([happened], timeout=PROMISE_S)
        disk.on_operation = None
        if done:
            await self._sleep(rng.choice((0.1, 5.0)))
            await self._start(node)

    async def cut_power_behind_records(self, node: SimNode, client: str, rng: random.Random) -> None:
        await self._cut_power_behind("records", node, client, rng)

    async def cut_power_behind_commit(self, node: SimNode, client: str, rng: random.Random) -> None:
        await self._cut_power_behind("commit", node, client, rng)

    async def _cut_power_behind(self, event: str, node: SimNode, client: str, rng: random.Random) -> None:
        """Cut the power at the moment at which a client receives a confirmation, if it receives one within
        PROMISE_S.
        """
        promised = self._world.loop.create_future()
        self._ledger.on_promise[event] = lambda: promised.set_result(None)
        done, _ = await asyncio.wait([promised], timeout=PROMISE_S)
        if done:
            await self.cut_power(node, client, rng)
        else:
            del self._ledger.on_promise[event]

    async def pause(self, node: SimNode, _client: str, rng: random.Random) -> None:
        node.host.pause()
        await self._sleep(rng.choice((0.3, 3.0, 12.0)))
        node.host.resume()

    # Links

    async def _cut(self, links: list[tuple[str, str]], seconds: float) -> None:
        """Block links, given by source and target, for some seconds."""
        for link in links:
            self._world.network.partition_one_way(*link)
        await self._sleep(seconds)
        for link in links:
            self._world.network.unblock(*link)

    async def cut_link(self, node: SimNode, client: str, rng: random.Random) -> None:
        host = node.host.name
        await self._cut([(host, client), (client, host)], rng.uniform(0.1, 8.0))

    async def cut_one_way(self, node: SimNode, client: str, rng: random.Random) -> None:
        ends = [node.host.name, client]
        rng.shuffle(ends)
        await self._cut([(ends[0], ends[1])], rng.uniform(0.1, 8.0))

    def _peers(self, node: SimNode) -> list[str]:
        return [other.host.name for other in self._cluster.nodes if other is not node]

    async def isolate(self, node: SimNode, _client: str, rng: random.Random) -> None:
        """Cut the links between one broker and all others, in both directions or in one; clients still reach it. The
        store may be cut too.
        """
        host = node.host.name
        peers = self._peers(node) + ([shared_store.HOST] if rng.random() < 0.5 else [])
        links = [(host, peer) for peer in peers] + [(peer, host) for peer in peers]
        draw = rng.random()
        if draw < 0.2:
            links = [link for link in links if link[0] == host]
        elif draw < 0.4:
            links = [link for link in links if link[1] == host]
        await self._cut(links, rng.uniform(0.5, 15.0))

    async def reset(self, node: SimNode, client: str, rng: random.Random) -> None:
        self._world.network.reset_connections(node.host.name, rng.choice([client, *self._peers(node)]))
        await self._sleep(rng.uniform(0.0, 1.0))

    async def stall(self, node: SimNode, client: str, rng: random.Random) -> None:
        stalled = self._world.network.stall_connections(node.host.name, rng.choice([client, *self._peers(node)]))
        await self._sleep(rng.uniform(1.0, 10.0))
        for stream in stalled:
            stream.break_both("net.reset")

    async def slow_network(self, _node: SimNode, _client: str, rng: random.Random) -> None:
        self._world.network.conditions = Conditions(latency_s=(0.01, 0.3), slow_chance=0.2, slow_s=(0.3, 2.0))
        await self._sleep(rng.uniform(1.0, 6.0))
        self._world.network.conditions = Conditions()

    async def _degrade(self, node: SimNode, client: str, rng: random.Random, conditions: Conditions) -> None:
        """Set the conditions of all links of one broker for some seconds, or of its link with one client."""
        host = node.host.name
        peers = [client] if rng.random() < 0.5 else [*self._clients, *self._peers(node), shared_store.HOST]
        links = [(host, peer) for peer in peers] + [(peer, host) for peer in peers]
        for link in links:
            self._world.network.set_conditions(*link, conditions)
        await self._sleep(rng.uniform(1.0, 10.0))
        for link in links:
            self._world.network.set_conditions(*link, None)

    async def lossy_link(self, node: SimNode, client: str, rng: random.Random) -> None:
        await self._degrade(node, client, rng, Conditions(loss_chance=rng.choice((0.02, 0.1, 0.3))))

    async def reordering_link(self, node: SimNode, client: str, rng: random.Random) -> None:
        conditions = Conditions(latency_s=(0.0001, rng.choice((0.05, 0.5))), slow_chance=0.05, slow_s=(0.5, 2.0))
        await self._degrade(node, client, rng, conditions)

    # Disks and clocks

    async def full_disk(self, node: SimNode, _client: str, rng: random.Random) -> None:
        medium = node.host.disk.medium
        medium.capacity_bytes = medium.used_bytes() + rng.randrange(ROOM_BYTES_MAX)
        await self._sleep(rng.uniform(0.5, 8.0))
        medium.capacity_bytes = None
        node.host.disk.medium.capacity_bytes = None  # a power cut may have replaced the medium

    async def failing_disk(self, node: SimNode, client: str, rng: random.Random) -> None:
        """Let writes or syncs of record files fail with EIO. After a failed sync the operating system has lost bytes,
        so the machine is restarted and not only the process.
        """
        node.host.disk.fail(rng.choice(("write", "sync")), "*.log", errno.EIO, times=rng.choice((1, 1000)))
        await self._sleep(rng.uniform(0.5, 5.0))
        await self.cut_power(node, client, rng)

    async def lost_disk(self, node: SimNode, _client: str, rng: random.Random) -> None:
        """Replace the disk of a broker by an empty one. In half of the cases its machine is restarted, too."""
        if rng.random() < 0.5:
            self._cut_power(node)
        else:
            self._kill(node)
        await self._sleep(rng.choice((0.0, 2.0, 10.0)))
        node.host.disk.remove_tree(DATA)
        await self._start(node)

    async def flipped_bit(self, node: SimNode, _client: str, rng: random.Random) -> None:
        """Flip one bit of a record file at rest, while the process is down, so that the next start finds it."""
        self._kill(node)
        node.host.disk.flip_bit("*-*/*.log", rng)
        await self._sleep(rng.uniform(0.0, 2.0))
        await self._start(node)

    async def wrong_clock(self, node: SimNode, _client: str, rng: random.Random) -> None:
        # An hour is the limit of `message.timestamp.after.max.ms`.
        node.host.clock.wall_offset_ms = rng.choice((-3_000_000, -1000, 0, 1000, 60_000))
        await self._sleep(rng.uniform(0.0, 5.0))

    async def drifting_clock(self, node: SimNode, _client: str, rng: random.Random) -> None:
        node.host.clock.set_rate(rng.choice((0.9, 0.999, 1.001, 1.1)))
        await self._sleep(rng.uniform(1.0, 20.0))
        node.host.clock.set_rate(1.0)

    # The metadata store

    async def cut_store(self, node: SimNode, _client: str, rng: random.Random) -> None:
        links = [(node.host.name, shared_store.HOST), (shared_store.HOST, node.host.name)]
        if rng.random() < 0.5:
            links = [rng.choice(links)]  # calls are lost, or only their answers
        await self._cut(links, rng.uniform(0.5, 12.0))

    async def lost_session(self, node: SimNode, _client: str, rng: random.Random) -> None:
        self._cluster.store.expire_sessions(node.host.name)
        await self._sleep(rng.uniform(0.0, 5.0))

    async def slow_store(self, _node: SimNode, _client: str, rng: random.Random) -> None:
        self._cluster.store.delay_s = (0.05, rng.choice((0.5, 3.0)))
        await self._sleep(rng.uniform(1.0, 10.0))
        self._cluster.store.delay_s = (0.0, 0.0)


class Fault(NamedTuple):
    apply: Callable[[Faults, SimNode, str, random.Random], Awaitable[None]]
    resources: tuple[str, ...]
    """Names with the fields {node} and {client}, which are the hosts that the fault affects."""
    affects_all_brokers: bool = False


PROCESS, DISK, CLOCK = "{node} process", "{node} disk", "{node} clock"

FAULTS: dict[str, Fault] = {
    "kill": Fault(Faults.kill, (PROCESS,)),
    "kill of all brokers": Fault(Faults.kill_all, (PROCESS,), affects_all_brokers=True),
    "kill before an acknowledgement": Fault(Faults.kill_before_acknowledgement, (PROCESS, WRITES)),
    "restart": Fault(Faults.restart, (PROCESS,)),
    "pause": Fault(Faults.pause, (PROCESS,)),
    "power cut": Fault(Faults.cut_power, (PROCESS, POWER)),
    "power cut of all brokers": Fault(Faults.cut_power_of_all, (PROCESS, POWER), affects_all_brokers=True),
    "power cut in a write": Fault(Faults.cut_power_in_write, (PROCESS, POWER, WRITES)),
    "power cut behind records": Fault(Faults.cut_power_behind_records, (PROCESS, POWER)),
    "power cut behind a commit": Fault(Faults.cut_power_behind_commit, (PROCESS, POWER)),
    "cut link": Fault(Faults.cut_link, ("{node} {client}",)),
    "one-way cut": Fault(Faults.cut_one_way, ("{node} {client}",)),
    "isolated broker": Fault(Faults.isolate, ("{node} peers", "{node} store")),
    "reset": Fault(Faults.reset, ()),
    "stalled connections": Fault(Faults.stall, ()),
    "slow network": Fault(Faults.slow_network, ("network",)),
    "lossy link": Fault(Faults.lossy_link, ("{node} conditions",)),
    "reordering link": Fault(Faults.reordering_link, ("{node} conditions",)),
    "full disk": Fault(Faults.full_disk, (DISK,)),
    "failing disk": Fault(Faults.failing_disk, (PROCESS, DISK, POWER)),
    "lost disk": Fault(Faults.lost_disk, (PROCESS, DISK, POWER)),
    "flipped bit": Fault(Faults.flipped_bit, (PROCESS, DISK, POWER)),
    "wrong clock": Fault(Faults.wrong_clock, (CLOCK,)),
    "drifting clock": Fault(Faults.drifting_clock, (CLOCK,)),
    "cut store link": Fault(Faults.cut_store, ("{node} store",)),
    "lost session": Fault(Faults.lost_session, ("{node} store",)),
    "slow store": Fault(Faults.slow_store, ("store",)),
}


def without_lost_writes(profile: Profile) -> Profile:
    """Return the profile without the faults that may lose unsynced bytes.

    Without eligible leader replicas, the last in-sync replica may lose its power and then lead without records that it
    had not synced (KIP-966).
    """
    faults = {name: rate for name, rate in profile.faults.items() if POWER not in FAULTS[name].resources}
    return profile._replace(faults=faults)
