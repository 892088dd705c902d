"""The faults of the rounds. Each one has a name, a time for which it lasts, and what it needs of the machine."""

import asyncio
import re
import threading
import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from rounds_harness import disks
from rounds_harness.brokers import NUMBERS, SESSION_MS, Brokers, machine_of
from rounds_harness.namespaces import CLIENTS
from rounds_harness.stores import SERVERS, Servers, SqliteFile
from tidelog.broker.dead_leases import BrokerLeases
from tidelog.config.metadata_store import StoreAddress
from tidelog.runtime.real import real_runtime

LEASE_S = SESSION_MS / 1000
QUICK = (0.2, 1.0)
SHORT = (0.3 * LEASE_S, 0.6 * LEASE_S)
"""Shorter than the lease of a broker."""
LONG = (LEASE_S + 2, LEASE_S + 5)
"""Longer than the lease of a broker and of the controller, and the elections after its end."""
Victims = set[int]


class Fault(NamedTuple):
    """`inject` returns the brokers that the fault affects; their partitions are measured apart from the others."""

    name: str
    text: str
    lasts_s: tuple[float, float]
    inject: Callable[[Brokers, Random], Victims]
    needs: str = ""
    """`network`, `disks`, `servers` or `sqlite`: what the fault cannot be without."""
    allowed_errors: re.Pattern[str] | None = None
    """Log lines of level ERROR that the fault explains."""


def _any(random: Random) -> int:
    return random.choice(NUMBERS)


def _kill(*victims: int) -> Callable[[Brokers], Victims]:
    def inject(brokers: Brokers) -> Victims:
        for number in victims:
            brokers[number].kill()
        return set(victims)

    return inject


def _kill_broker(brokers: Brokers, random: Random) -> Victims:
    controller = brokers.controller()
    return _kill(random.choice([number for number in NUMBERS if number != controller]))(brokers)


def _kill_controller(brokers: Brokers, random: Random) -> Victims:
    return _kill(brokers.controller())(brokers)


def _kill_supervised(brokers: Brokers, random: Random) -> Victims:
    """The supervisor of `tidelog start --brokers` ends the leases of a dead broker."""
    number = _any(random)
    brokers[number].kill()
    store = brokers.store
    assert isinstance(store, SqliteFile)

    async def end_leases() -> None:
        runtime = real_runtime()
        try:
            address = StoreAddress("sqlite", (), store.address.removeprefix("sqlite:"))
            await BrokerLeases(address, runtime).end(number, [str(brokers[number].data)])
        finally:
            await runtime.close()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(end_leases())
    return {number}


def _kill_two(brokers: Brokers, random: Random) -> Victims:
    return _kill(*random.sample(NUMBERS, 2))(brokers)


def _kill_all(brokers: Brokers, random: Random) -> Victims:
    return _kill(*random.sample(NUMBERS, 3))(brokers)


def _kill_in_turn(brokers: Brokers, random: Random) -> Victims:
    """Each broker dies as soon as the one before has started again, whether or not the replicas are in sync."""
    for number in random.sample(NUMBERS, 3):
        brokers[number].kill()
        time.sleep(random.uniform(*QUICK))
        brokers[number].start()
    return set(NUMBERS)


def _kill_while_starting(brokers: Brokers, random: Random) -> Victims:
    number = _any(random)
    for _ in range(3):
        brokers[number].kill()
        starting = threading.Thread(target=brokers[number].start, daemon=True)
        starting.start()
        time.sleep(random.uniform(0.3, 2.0))
        brokers[number].give_up_start()
        starting.join()
    return {number}


def _stop_in_turn(brokers: Brokers, random: Random) -> Victims:
    """A restart of all brokers in order, as for an upgrade, with waiting for the replicas."""
    for number in random.sample(NUMBERS, 3):
        brokers[number].stop()
        brokers[number].start()
        brokers.wait_until_in_sync(60)
    return set(NUMBERS)


def _pause_broker(brokers: Brokers, random: Random) -> Victims:
    controller = brokers.controller()
    number = random.choice([number for number in NUMBERS if number != controller])
    brokers[number].pause()
    return {number}


def _pause_controller(brokers: Brokers, random: Random) -> Victims:
    number = brokers.controller()
    brokers[number].pause()
    return {number}


def _pause_all(brokers: Brokers, random: Random) -> Victims:
    for number in NUMBERS:
        brokers[number].pause()
    return set(NUMBERS)


def _kill_and_pause(brokers: Brokers, random: Random) -> Victims:
    killed, paused = random.sample(NUMBERS, 2)
    brokers[killed].kill()
    time.sleep(random.uniform(0, 2))
    brokers[paused].pause()
    return {killed, paused}


def _fill_disk(count: int) -> Callable[[Brokers, Random], Victims]:
    def inject(brokers: Brokers, random: Random) -> Victims:
        victims = random.sample(NUMBERS, count)
        for number in victims:
            disks.fill(brokers.directory / machine_of(number))
        return set(victims)

    return inject


def _isolate(brokers: Brokers, random: Random) -> Victims:
    number = _any(random)
    brokers.isolate(number)
    return {number}


def _isolate_controller(brokers: Brokers, random: Random) -> Victims:
    number = brokers.controller()
    brokers.isolate(number)
    return {number}


def _cut_from_brokers(brokers: Brokers, random: Random) -> Victims:
    """One broker reaches the clients and the store, and no other broker."""
    number = _any(random)
    for other in NUMBERS:
        if other != number:
            brokers.cut(machine_of(number), machine_of(other))
            brokers.cut(machine_of(other), machine_of(number))
    return {number}


def _cut_pair(brokers: Brokers, random: Random) -> Victims:
    """Two brokers do not reach each other; the third one reaches both."""
    one, other = random.sample(NUMBERS, 2)
    brokers.cut(machine_of(one), machine_of(other))
    brokers.cut(machine_of(other), machine_of(one))
    return {one, other}


def _cut_one_way(brokers: Brokers, random: Random) -> Victims:
    """One broker receives packets, and the other brokers receive none of it."""
    number = _any(random)
    for other in NUMBERS:
        if other != number:
            brokers.cut(machine_of(number), machine_of(other))
    return {number}


def _cut_from_clients(brokers: Brokers, random: Random) -> Victims:
    number = _any(random)
    brokers.cut(machine_of(number), CLIENTS)
    brokers.cut(CLIENTS, machine_of(number))
    return {number}


def _cut_from_store(brokers: Brokers, random: Random) -> Victims:
    number = _any(random)
    for server in brokers.store.machines:
        brokers.cut(machine_of(number), server)
        brokers.cut(server, machine_of(number))
    return {number}


def _servers(count: int, action: str) -> Callable[[Brokers, Random], Victims]:
    def inject(brokers: Brokers, random: Random) -> Victims:
        assert isinstance(brokers.store, Servers)
        for number in random.sample(range(SERVERS), count):
            (brokers.store.kill if action == "kill" else brokers.store.pause)(number)
        return set(NUMBERS)

    return inject


def _kill_store_and_broker(brokers: Brokers, random: Random) -> Victims:
    _servers(SERVERS, "kill")(brokers, random)
    return _kill_broker(brokers, random)


def _lock_file(brokers: Brokers, random: Random) -> Victims:
    assert isinstance(brokers.store, SqliteFile)
    brokers.store.lock()
    return set(NUMBERS)


def _nothing(brokers: Brokers, random: Random) -> Victims:
    return set()


DISK_ERRORS = re.compile(
    "appends refused|append failed, loading again|recovery points not written|no leader until the log is truncated"
)
FAULTS = [
    Fault("none", "no fault, for comparison", SHORT, _nothing),
    Fault("kill-broker", "kill -9 of a broker that is not the controller, started again at once", QUICK, _kill_broker),
    Fault("kill-broker-long", "kill -9 of such a broker, started again after its lease has ended", LONG, _kill_broker),
    Fault("kill-controller", "kill -9 of the controller, started again at once", QUICK, _kill_controller),
    Fault("kill-controller-long", "kill -9 of the controller, started again after its lease", LONG, _kill_controller),
    Fault("kill-supervised", "kill -9 of a broker, whose leases the supervisor ends", LONG, _kill_supervised, "sqlite"),
    Fault("kill-two", "kill -9 of two brokers, started again after the lease has ended", LONG, _kill_two),
    Fault("kill-all", "kill -9 of all brokers, started again at once", QUICK, _kill_all),
    Fault("kill-in-turn", "kill -9 of each broker, as soon as the one before has started", QUICK, _kill_in_turn),
    Fault("kill-while-starting", "kill -9 of a broker three times while it starts", QUICK, _kill_while_starting),
    Fault("stop-in-turn", "a restart in order of all brokers, one after another", QUICK, _stop_in_turn),
    Fault("pause-broker", "SIGSTOP of a broker, for less than the lease", SHORT, _pause_broker),
    Fault("pause-broker-long", "SIGSTOP of a broker, for longer than the lease", LONG, _pause_broker),
    Fault("pause-controller-long", "SIGSTOP of the controller, for longer than the lease", LONG, _pause_controller),
    Fault("pause-all-long", "SIGSTOP of all brokers, for longer than the lease", LONG, _pause_all),
    Fault("kill-and-pause", "kill -9 of one broker, then SIGSTOP of another one", LONG, _kill_and_pause),
    Fault("disk-full", "the disk of one broker is full", LONG, _fill_disk(1), "disks", DISK_ERRORS),
    Fault("disk-full-all", "the disks of all brokers are full", SHORT, _fill_disk(3), "disks", DISK_ERRORS),
    Fault("isolate", "a broker loses its whole network, for longer than the lease", LONG, _isolate, "network"),
    Fault("isolate-short", "a broker loses its whole network, for less than the lease", SHORT, _isolate, "network"),
    Fault("isolate-controller", "the controller loses its whole network", LONG, _isolate_controller, "network"),
    Fault("cut-from-brokers", "a broker does not reach the other brokers", LONG, _cut_from_brokers, "network"),
    Fault("cut-pair", "two brokers do not reach each other", LONG, _cut_pair, "network"),
    Fault("cut-one-way", "a broker's packets to the other brokers are lost", LONG, _cut_one_way, "network"),
    Fault("cut-from-clients", "a broker does not reach the clients", LONG, _cut_from_clients, "network"),
    Fault("cut-from-store", "a broker does not reach the store", LONG, _cut_from_store, "network servers"),
    Fault("store-kill-one", "kill -9 of one server of the store", LONG, _servers(1, "kill"), "servers"),
    Fault("store-kill-two", "kill -9 of two servers of the store", LONG, _servers(2, "kill"), "servers"),
    Fault("store-kill-all", "kill -9 of all servers of the store", LONG, _servers(3, "kill"), "servers"),
    Fault("store-pause-one", "SIGSTOP of one server of the store", LONG, _servers(1, "pause"), "servers"),
    Fault("store-pause-all", "SIGSTOP of all servers, for less than the lease", SHORT, _servers(3, "pause"), "servers"),
    Fault("store-pause-all-long", "SIGSTOP of all servers, for longer", LONG, _servers(3, "pause"), "servers"),
    Fault("store-and-broker", "kill -9 of all servers, and of a broker", LONG, _kill_store_and_broker, "servers"),
    Fault("store-locked", "the store's file is locked for less than the lease", SHORT, _lock_file, "sqlite"),
    Fault("store-locked-long", "the store's file is locked for longer than the lease", LONG, _lock_file, "sqlite"),
]  # fmt: skip


def possible(kind: str, abilities: set[str], reason: str) -> tuple[list[Fault], dict[str, str]]:
    """Return the faults that a cluster on this kind of store can have here, and why each other one is skipped.

    `reason` says why the program has no namespaces of its own; it is empty if it has.
    """
    missing = {
        "network": reason,
        "disks": reason or "this machine allows no mounts",
        "servers": "SQLite has no servers",
        "sqlite": f"{kind} has no such fault",
    }
    abilities = abilities | {"sqlite" if kind == "sqlite" else "servers"}
    skipped = {
        fault.name: missing[next(need for need in fault.needs.split() if need not in abilities)]
        for fault in FAULTS
        if not set(fault.needs.split()) <= abilities
    }
    return [fault for fault in FAULTS if fault.name not in skipped], skipped
