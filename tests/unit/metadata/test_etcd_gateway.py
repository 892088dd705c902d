"""The choice of etcd's servers: which one is used first, and how calls leave a server that does not work. The servers
are scripts on real sockets.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidelog.broker.metadata_store import make_store
from tidelog.config.metadata_store import parse_store_address
from tidelog.metadata.etcd import EtcdStore
from tidelog.metadata.etcd_gateway import AnswerLost, EtcdGateway, EtcdServers, WatchEnd
from tidelog.metadata.remote_store import LEASES, WATCH
from tidelog.metadata.store import Lease, StoreUnavailable

CREATED: dict[str, Any] = {"result": {"header": {}, "created": True}}
CHANGED: dict[str, Any] = {"result": {"header": {}, "events": [{}]}}
NO_LEADER: dict[str, Any] = {"error": {"grpc_code": 14, "message": "etcdserver: no leader"}}
Script = Callable[["Server", socket.socket], None]


class Server:
    """Accepts connections. A script answers each request; without a script the server hangs."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script
        self.requests: list[str] = []
        """All requests, with their headers."""
        self.arrived = threading.Event()
        self._connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._connections):
            with each:
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # it is closed already

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            received = connection.makefile("rb")
            while head := b"".join(iter(received.readline, b"\r\n")):
                size = int(head.lower().partition(b"content-length:")[2].splitlines()[0])
                self.requests.append((head + received.read(size)).decode())
                self.arrived.set()
                if self.script is not None:
                    self.script(self, connection)
        except OSError:
            return


def answering(content: dict[str, Any]) -> Script:
    def answer(server: Server, connection: socket.socket) -> None:
        body = json.dumps(content).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    return answer


def streaming(*lines: dict[str, Any], ends: bool = False) -> Script:
    def answer(server: Server, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for line in lines:
            body = json.dumps(line).encode() + b"\n"
            connection.sendall(b"%x\r\n%b\r\n" % (len(body), body))
        if ends:
            connection.shutdown(socket.SHUT_RDWR)

    return answer


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start_one(script: Script | None = None) -> Server:
        started.append(Server(script))
        return started[-1]

    yield start_one
    for server in started:
        server.close()


def no_runtime() -> Any:
    """Return a runtime that the store does not use while its methods for threads are called directly."""

    class NoRuntime:
        random = None
        tasks = None

    return NoRuntime()


def test_brokers_begin_with_different_servers() -> None:
    address = parse_store_address("etcd://a:1,b:2,c:3/tidelog")
    stores = [make_store(address, "", no_runtime(), node_id=node_id) for node_id in (1, 2, 3, 4)]
    first = [store._servers.current for store in stores if isinstance(store, EtcdStore)]
    assert first == [1, 2, 0, 1]


def test_a_watch_leaves_a_server_that_does_not_confirm_it(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.metadata.etcd_gateway.WATCH_CREATED_S", 0.2)
    hung, working = start(), start(streaming(CREATED, CHANGED))
    gateway = EtcdGateway("etcd://test", EtcdServers([hung.address, working.address]))
    assert gateway.watch(b"end", 7, 60) is WatchEnd.FAILED
    assert gateway.watch(b"end", 7, 60) is WatchEnd.MAY_BE_CHANGED
    assert len(hung.requests) == len(working.requests) == 1


def test_a_confirmed_watch_may_last_for_its_whole_time(start: Callable[..., Server]) -> None:
    server, other = start(streaming(CREATED)), start()
    servers = EtcdServers([server.address, other.address])
    assert EtcdGateway("etcd://test", servers).watch(b"end", 7, 0.2) is WatchEnd.TIME_OVER
    assert servers.current == 0


@pytest.mark.parametrize("lines", [(CREATED, NO_LEADER), (CREATED,)])
def test_a_watch_leaves_a_server_that_is_cut_off_or_stops(
    start: Callable[..., Server], lines: tuple[dict[str, Any], ...]
) -> None:
    cut_off, working = start(streaming(*lines, ends=lines == (CREATED,))), start(streaming(CREATED, CHANGED))
    gateway = EtcdGateway("etcd://test", EtcdServers([cut_off.address, working.address]))
    assert gateway.watch(b"end", 7, 60) is WatchEnd.FAILED
    assert gateway.watch(b"end", 7, 60) is WatchEnd.MAY_BE_CHANGED
    assert "grpc-metadata-hasleader: true" in cut_off.requests[0].lower()


def test_a_server_that_answers_one_lane_no_more_is_left_by_all(start: Callable[..., Server]) -> None:
    """Calls on idle connections and a watch in progress move to the other server, too."""
    hung = start(streaming(CREATED))
    working = start(answering({"kvs": []}))
    servers = EtcdServers([hung.address, working.address])
    calls, watches = EtcdGateway("etcd://test", servers), EtcdGateway("etcd://test", servers)
    servers.on_failed = watches.interrupt
    calls.answer_timeout_s = 0.2
    ended: list[WatchEnd] = []
    watching = threading.Thread(target=lambda: ended.append(watches.watch(b"end", 7, 60)))
    watching.start()
    assert hung.arrived.wait(10)
    hung.script = None
    with pytest.raises(AnswerLost):
        calls.change("/v3/kv/put", {})
    watching.join(10)
    assert ended == [WatchEnd.FAILED]
    assert servers.current == 1
    assert watches.read("/v3/kv/range", {}) == {"kvs": []}
    watches.close()
    assert len(hung.requests) == 2


def test_a_failure_of_an_earlier_server_changes_nothing() -> None:
    servers = EtcdServers([("a", 1), ("b", 2), ("c", 3)])
    servers.failed(0)
    servers.failed(0)
    assert servers.current == 1


def test_a_cancelled_watch_does_not_change_the_server(start: Callable[..., Server]) -> None:
    server, other = start(streaming(CREATED)), start()
    servers = EtcdServers([server.address, other.address])
    gateway = EtcdGateway("etcd://test", servers)
    watching = threading.Thread(target=gateway.watch, args=(b"end", 7, 60))
    watching.start()
    assert server.arrived.wait(10)
    gateway.cancel_watch()
    watching.join(10)
    assert not watching.is_alive()
    assert servers.current == 0


def test_a_renewal_without_answer_takes_a_quarter_of_the_term(start: Callable[..., Server]) -> None:
    """The next attempt is made in time, on another server. Reads on the same lane do not delay it longer, either."""
    hung, other = start(), start()
    store = EtcdStore("etcd://test", [hung.address, other.address], "/t", no_runtime())
    gateway = store._gateways[LEASES]
    began_s = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store._call(store._renew, gateway, Lease("broker/1", "one", 1), 2000)
    assert 0.4 < time.monotonic() - began_s < 2
    assert store._servers.current == 1
    with pytest.raises(StoreUnavailable):
        store._call(store._held_leases, gateway, "broker/")
    assert time.monotonic() - began_s < 4
    gateway.close()
    assert store._gateways[WATCH].answer_timeout_s == 5
