"""A simulated network: hosts, listeners, connections, and their faults.

Connections are byte streams like TCP connections. Bytes arrive in order, but may be split and joined anywhere. They may
be slow, may be delayed while a link is blocked, or may be lost by a reset. A lost segment causes only the delay of its
retransmission. The bytes of one connection may overtake the bytes of another. So a test can reorder the segments of
different connections by giving a link a varying latency.
"""

import errno
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tidelog.runtime.interfaces import Receiver
from tidelog.simulation.loop import SimLoop, process_context
from tidelog.simulation.stream import SimStream
from tidelog.simulation.tasks import ProcessGone
from tidelog.simulation.trace import Trace

FIRST_EPHEMERAL_PORT = 40_000
CONNECT_TIMEOUT_S = 30.0
RETRANSMISSION_S = 0.2
"""Time, in seconds, after which TCP sends a lost segment again. The time doubles with each attempt."""
RETRANSMISSIONS_MAX = 5
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(slots=True)
class Conditions:
    """Delays and limits of the network. A test may change them during a run."""

    latency_s: tuple[float, float] = (0.00005, 0.002)
    """Shortest and longest latency of a segment that is not slow, in seconds."""
    slow_chance: float = 0.01
    """Probability that a segment is slow."""
    slow_s: tuple[float, float] = (0.002, 0.1)
    """Shortest and longest latency of a slow segment, in seconds."""
    split_chance: float = 0.3
    """Probability that a piece of data arrives in two parts."""
    loss_chance: float = 0.0
    """Probability that a segment is lost. The receiver gets it after a retransmission."""
    window_bytes: int = 65_536
    """Upper bound on the bytes that were sent and that the peer has not read yet. Further bytes stay in the stream's
    backlog."""


@dataclass(slots=True, eq=False)
class SimListener:
    """A listening port of one process."""

    network: "HostNetwork"
    host: str
    address: str
    port: int
    receiver: Callable[[], Receiver] | None = None
    """Creates the receiver of each new connection; None before `listen`."""
    paused_until_s: float = 0.0

    def listen(self, receiver: Callable[[], Receiver]) -> Self:
        self.receiver = receiver
        self.network.note("net.listen", f"{self.address}:{self.port}")
        return self

    def pause(self, delay_s: float) -> None:
        self.paused_until_s = self.network.loop_time() + delay_s

    def close(self) -> None:
        self.network.listeners.pop((self.address, self.port), None)


class SimNetwork:
    """The network between all hosts, with the conditions and the faults of its links."""

    def __init__(self, loop: SimLoop, rng: random.Random, trace: Trace, conditions: Conditions | None = None) -> None:
        self.loop = loop
        self.rng = rng
        self.trace = trace
        self.conditions = conditions or Conditions()
        self._addresses: dict[str, str] = {}
        self._hosts: dict[str, HostNetwork | None] = {}
        """For each host, the `HostNetwork` of its newest process; None while the host has no power."""
        self._link_conditions: dict[tuple[str, str], Conditions] = {}
        """Conditions of single links, by source and target. All other links have the common `conditions`."""
        self._blocked_links: Counter[tuple[str, str]] = Counter()
        """Number of faults that block each link."""
        self._stuck_streams: dict[SimStream, None] = {}
        self._stuck_messages: list[tuple[str, str, float, Callable[[], object]]] = []
        """Messages of `send` on blocked links: source, target, the time at which the message is lost if the link is
        still blocked, and the function to call when the message arrives."""

    def add_host(self, name: str, address: str) -> None:
        """Add a host that is switched off."""
        self._addresses[name] = address
        self._hosts[name] = None

    def start_process(self, host: str) -> "HostNetwork":
        """Switch the host on, if needed, and return the network of a new process on it."""
        process = HostNetwork(self, host, self._addresses[host])
        self._hosts[host] = process
        return process

    def stop_process(self, host: str, *, power: bool) -> None:
        """End the host's process.

        With `power`, the kernel closes or resets the connections of the process. Without `power`, the host is switched
        off, and the peers receive nothing.
        """
        process = self._hosts[host]
        assert process is not None
        process.kill(notify_peers=power)
        if not power:
            self._hosts[host] = None

    def partition(self, one: str, other: str) -> None:
        """Block all traffic between two hosts, in both directions. Each direction is blocked until `heal`, or until
        `unblock` is called for it.
        """
        self._blocked_links.update([(one, other), (other, one)])
        self.trace.note(one, "net.partition", other)

    def partition_one_way(self, source: str, target: str) -> None:
        self._blocked_links[source, target] += 1
        self.trace.note(source, "net.partition_one_way", target)

    def unblock(self, source: str, target: str) -> None:
        """End one fault that blocks the link from `source` to `target`. If no other fault blocks the link, its stuck
        data is delivered.
        """
        if self._blocked_links[source, target] > 0:  # `heal` may have ended the fault already
            self._blocked_links[source, target] -= 1
        self.trace.note(source, "net.unblock", target)
        self._deliver_stuck()

    def heal(self) -> None:
        """Unblock all links. Data that was stuck is delivered."""
        self._blocked_links.clear()
        self.trace.note("*", "net.heal")
        self._deliver_stuck()

    def _deliver_stuck(self) -> None:
        for stream in list(self._stuck_streams):
            if self.passes(*stream.link):
                del self._stuck_streams[stream]
                stream.resend_delayed()
        stuck, self._stuck_messages = self._stuck_messages, []
        for source, target, lost_at, arrive in stuck:
            if lost_at > self.loop.time():
                self.send(source, target, lost_at, arrive)

    def set_conditions(self, source: str, target: str, conditions: Conditions | None) -> None:
        """Set the conditions of the link from `source` to `target`; None means the network's common conditions."""
        if conditions is None:
            self._link_conditions.pop((source, target), None)
        else:
            self._link_conditions[source, target] = conditions

    def stall_connections(self, one: str, other: str) -> "list[SimStream]":
        """Stop the traffic of every connection between two hosts, as if a router had lost its state of these
        connections. New connections work. Returns one side of each stalled connection. `SimStream.break_both` ends such
        a connection.
        """
        process = self._hosts[one]
        stalled = [s for s in process.streams if s.remote_host == other] if process is not None else []
        for stream in stalled:
            stream.stall()
        return stalled

    def reset_connections(self, one: str, other: str) -> int:
        """Reset every connection between two hosts. Returns their number."""
        count = 0
        process = self._hosts[one]
        for stream in list(process.streams) if process is not None else []:
            if stream.remote_host == other:
                stream.break_both("net.reset")
                count += 1
        return count

    def send(self, source: str, target: str, lost_at: float, arrive: Callable[[], object]) -> None:
        """Send one message that belongs to no connection. `arrive` is called when the message reaches `target`.
        Messages may overtake each other. If the link is blocked until `lost_at`, the message is lost.
        """

        def attempt() -> None:
            if self.passes(source, target):
                arrive()
            else:
                self._stuck_messages.append((source, target, lost_at, arrive))

        self.loop.call_system_later(self.latency_s((source, target)), attempt)

    # Called by `SimStream` and `HostNetwork`

    def passes(self, source: str, target: str) -> bool:
        return not self._blocked_links or self._blocked_links[source, target] == 0

    def wake_when_healed(self, stream: SimStream) -> None:
        self._stuck_streams[stream] = None

    def has_power(self, host: str) -> bool:
        return self._hosts[host] is not None

    def latency_s(self, link: tuple[str, str]) -> float:
        """Return a random latency of one segment, including the segment's retransmissions. `link` is the source and
        the target.
        """
        conditions = self._link_conditions.get(link, self.conditions) if self._link_conditions else self.conditions
        random_number = self.rng.random
        shortest_s, longest_s = conditions.slow_s if random_number() < conditions.slow_chance else conditions.latency_s
        latency_s = shortest_s + (longest_s - shortest_s) * random_number()
        if conditions.loss_chance:
            for attempt in range(RETRANSMISSIONS_MAX):
                if random_number() >= conditions.loss_chance:
                    break
                latency_s += RETRANSMISSION_S * 2**attempt
        return latency_s

    def process(self, host: str) -> "HostNetwork | None":
        return self._hosts[host]

    def host_of(self, name: str, asking_host: str) -> str:
        """Return the host with this name or address. Raises OSError, as a resolver does."""
        if name in LOOPBACK:
            return asking_host
        for host, address in self._addresses.items():
            if name in (host, address):
                return host
        raise OSError(errno.ENOENT, f"unknown host: {name}")


class HostNetwork:
    """The `Network` of one process."""

    def __init__(self, network: SimNetwork, host: str, address: str) -> None:
        self.host = host
        self.address = address
        self.alive = True
        self.context = process_context(host)
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.streams: dict[SimStream, None] = {}
        self._network = network
        self._next_port = FIRST_EPHEMERAL_PORT + network.rng.randrange(1000)

    async def bind(self, host: str, port: int) -> SimListener:
        self._check_alive()
        if host in ANY_ADDRESS:
            address = "*"
        elif host in LOOPBACK:
            address = "127.0.0.1"
        elif self._network.host_of(host, self.host) == self.host:
            address = self.address
        else:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        if port == 0:
            port = self._free_port()
        for used_address, used_port in self.listeners:
            if used_port == port and (used_address == address or "*" in (used_address, address)):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = SimListener(self, host, address, port)
        self.listeners[address, port] = listener
        return listener

    def note(self, event: str, detail: str) -> None:
        self._network.trace.note(self.host, event, detail)

    async def connect(self, host: str, port: int, receiver: Receiver) -> SimStream:
        self._check_alive()
        network = self._network
        target = network.host_of(host, self.host)
        target_address = "127.0.0.1" if host in LOOPBACK else network._addresses[target]
        loop = network.loop
        deadline = loop.time() + CONNECT_TIMEOUT_S
        while True:
            round_trip_s = network.latency_s((self.host, target)) + network.latency_s((target, self.host))
            await self._wait(round_trip_s)
            is_link_open = network.passes(self.host, target) and network.passes(target, self.host)
            if network.has_power(target) and is_link_open:
                break
            if loop.time() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            await self._wait(min(1.0, max(deadline - loop.time(), 0.001)))  # TCP repeats the handshake
        process = network.process(target)
        assert process is not None
        listener = process.listener(target_address, port)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        while listener.paused_until_s > loop.time():
            await self._wait(listener.paused_until_s - loop.time())
        if process.listener(target_address, port) is not listener:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        local = "127.0.0.1" if target_address == "127.0.0.1" else self.address
        return self._establish(process, listener, receiver, f"{local}:{self._free_port()}", f"{target_address}:{port}")

    def loop_time(self) -> float:
        return self._network.loop.time()

    def close(self) -> None:
        self._check_alive()
        self.listeners.clear()
        for stream in list(self.streams):
            stream.abort()

    def kill(self, *, notify_peers: bool) -> None:
        """End the process. With `notify_peers`, the kernel closes or resets the connections of the process. Otherwise
        the peers receive nothing.
        """
        self.alive = False
        self.listeners.clear()
        for stream in list(self.streams):
            stream.vanish(notify_peers=notify_peers)
        self.streams.clear()

    def listener(self, address: str, port: int) -> SimListener | None:
        """Return the listener that accepts connections to this address and port, or None if there is none."""
        listener = self.listeners.get((address, port)) or self.listeners.get(("*", port))
        return listener if listener is not None and listener.receiver is not None else None

    def _establish(
        self, process: "HostNetwork", listener: SimListener, receiver: Receiver, local: str, peer: str
    ) -> SimStream:
        client_side = SimStream(self._network, self, process.host, local, peer)
        server_side = SimStream(self._network, process, self.host, peer, local)
        client_side.join(server_side)
        server_side.join(client_side)
        self._network.trace.note(self.host, "net.connect", f"{local}>{peer}")
        assert listener.receiver is not None
        process.run(server_side.start, listener.receiver)
        client_side.start(lambda: receiver)
        return client_side

    def run(self, callback: Callable[..., object], *args: object) -> None:
        """Call a function of this process: now, or after the pause if the process is paused."""
        if self._network.loop.is_paused(self.host):
            self._network.loop.call_soon(callback, *args, context=self.context)
        else:
            self.context.run(callback, *args)

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    async def _wait(self, delay_s: float) -> None:
        done = self._network.loop.create_future()

        def end() -> None:
            if not done.done():  # the caller may have been cancelled at the same time
                done.set_result(None)

        timer = self._network.loop.call_later(delay_s, end)
        try:
            await done
        finally:
            timer.cancel()
        self._check_alive()

    def _check_alive(self) -> None:
        if not self.alive:
            raise ProcessGone
