"""Blocking calls to etcd's JSON gateway (version 3 of the API), over persistent HTTP/1.1 connections.

All gateways of one process use the same server. When one of them finds that this server does not work, all of them use
the next server (`EtcdServers`). If a server does not accept a connection, the next server is tried, until each server
was tried once. A call that only reads is also repeated on the other servers if its answer is lost. A call that changes
something is never repeated after its request was sent, since only the caller can find out whether it was executed.
"""

import json
import select
import socket
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final

from tidelog.metadata.store import StoreFailed, StoreUnavailable

CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 5.0
"""Longest time that a call waits for its answer, unless its gateway has a shorter limit. Watches have other limits."""
WATCH_CREATED_S: Final = 2.0
"""Longest time, in seconds, until a server confirms a watch. The server does not ask the other servers for this, so a
server that needs more time does not work."""
ANSWER_BYTES_MAX: Final = 64 << 20
"""Upper bound on the bytes of one answer. etcd answers with at most 4 MiB, which take more bytes in JSON."""

HEADERS: Final = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
"""With `hasleader`, a server that is cut off from etcd's leader ends a watch with an error. Otherwise, the watch would
continue, and would report no change."""

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, OUT_OF_RANGE = 3, 8, 11
NO_PERMISSION = (7, 16)
"""Codes of gRPC in answers with an error. A call that gets one of these codes was not executed."""


class AnswerLost(Exception):
    """A call was sent, and it is unknown whether it was executed: no answer has arrived, or the answer is an error that
    does not say whether the call was executed.
    """


class AnswerTooLarge(Exception):
    """The answer exceeds ANSWER_BYTES_MAX, or a limit inside etcd. A call for fewer keys may succeed."""


def to_text(value: bytes) -> str:
    """Return bytes in the text form that the gateway expects."""
    return b64encode(value).decode()


def to_bytes(text: str) -> bytes:
    return b64decode(text)


class WatchEnd(Enum):
    """The reason why a watch has ended."""

    MAY_BE_CHANGED = "the key was changed, or may have been changed"
    TIME_OVER = "the server has confirmed the watch, and has reported no change until the time was over"
    FAILED = "the server does not work, or the watch was cancelled; the caller should pause before it calls again"


class EtcdServers:
    """The servers of one etcd cluster, and the number of the server that all gateways of this process use.

    The gateways share this number: as soon as one call gets no answer from a hung server, the later calls of all
    gateways go to the next server. All methods may be called on any thread.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], first: int = 0) -> None:
        """`first` is the number of the first server to use. It may exceed the number of servers. Brokers choose
        different numbers, so that one hung server does not delay all brokers.
        """
        self.addresses = addresses
        self.current = first % len(addresses)
        self.on_failed: Callable[[], None] | None = None
        """Called, on any thread, when the gateways have to use another server."""
        self._lock = threading.Lock()

    def failed(self, number: int) -> None:
        """Report that the server with this number does not work. If it is the current server, the gateways use the next
        server from now on.
        """
        with self._lock:
            is_current = number == self.current
            if is_current:
                self.current = (number + 1) % len(self.addresses)
        if is_current and self.on_failed is not None:
            self.on_failed()

    def name(self, number: int) -> str:
        host, port = self.addresses[number]
        return f"{host}:{port}"


class EtcdGateway:
    """One connection to one of the servers. Only `interrupt` and `cancel_watch` may be called while another method runs
    on another thread.
    """

    def __init__(self, url: str, servers: EtcdServers) -> None:
        """`url` names the store in errors."""
        self.answer_timeout_s = ANSWER_TIMEOUT_S
        """Longest time, in seconds, that a call waits for a connection, and then for its answer."""
        self._url = url
        self._servers = servers
        self._server = servers.current
        """The number of the server of the last connection."""
        self._connection: HTTPConnection | None = None
        self._watch_is_cancelled = False

    def read(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make a call that changes nothing. Raises StoreUnavailable, StoreFailed, AnswerTooLarge."""
        reason: Exception | None = None
        # The first attempt may use an open connection whose server does not answer any more.
        for _ in range(max(2, len(self._servers.addresses))):
            try:
                return self._exchange(path, body)
            except (AnswerLost, StoreUnavailable) as error:
                reason = error
        raise StoreUnavailable(f"{self._url} does not answer: {reason}")

    def change(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make a call that changes something. Raises AnswerLost if it is unknown whether the call was executed, and
        StoreUnavailable or StoreFailed if it was not executed.
        """
        return self._exchange(path, body)

    def watch(self, key: bytes, revision: int, timeout_s: float) -> WatchEnd:
        """Wait until the key is changed at `revision` or later, for at most about `timeout_s` seconds."""
        body = {"create_request": {"key": to_text(key), "start_revision": str(revision)}}
        self._watch_is_cancelled = False
        is_created = False
        try:
            response = self._send("/v3/watch", body, timeout_s=WATCH_CREATED_S)
            assert self._connection is not None
            while line := response.readline(1 << 20):
                result = json.loads(line).get("result")
                if result is None:  # an error; for example, the server has lost its connection to etcd's leader
                    break
                # etcd cancels the watch if the history from `revision` on was compacted, so the key may have changed.
                if result.get("events") or result.get("canceled"):
                    return WatchEnd.MAY_BE_CHANGED
                is_created = True
                self._connection.sock.settimeout(timeout_s)
        except TimeoutError:
            if is_created:
                return WatchEnd.TIME_OVER
        except (OSError, HTTPException, ValueError, StoreUnavailable):
            pass
        finally:
            self.close()
        if not self._watch_is_cancelled:
            self._use_next_server()
        return WatchEnd.FAILED

    def interrupt(self) -> None:
        """End a call that runs on another thread: it fails as if the server had closed the connection."""
        connection = self._connection
        stream = connection.sock if connection is not None else None
        if stream is not None:
            with suppress(OSError):  # the socket may be closed already
                stream.shutdown(socket.SHUT_RDWR)

    def cancel_watch(self) -> None:
        """End a watch that runs on another thread. The server counts as working, so it remains in use."""
        self._watch_is_cancelled = True
        self.interrupt()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _exchange(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return its answer. Raises AnswerLost, AnswerTooLarge, StoreUnavailable, StoreFailed."""
        try:
            response = self._send(path, body)
            content = response.read(ANSWER_BYTES_MAX + 1)
            if len(content) > ANSWER_BYTES_MAX:
                raise AnswerTooLarge
            answer: dict[str, Any] = json.loads(content)
        except (OSError, HTTPException, ValueError) as error:
            reason = f"{self._server_name()}: {error!r}"
            self.close()
            self._use_next_server()  # the current server may accept connections but never answer
            raise AnswerLost(reason) from error
        except BaseException:
            self.close()
            raise
        if response.status != 200:
            self._raise(response.status, answer)
        return answer

    def _send(self, path: str, body: dict[str, Any], *, timeout_s: float | None = None) -> HTTPResponse:
        """Send a request to the first server that accepts a connection. Raises StoreUnavailable if none does."""
        limit_s = min(self.answer_timeout_s, ANSWER_TIMEOUT_S) if timeout_s is None else timeout_s
        connection = self._connection
        # If an idle connection is readable, the server has closed it.
        if (
            connection is None
            or connection.sock is None
            or self._server != self._servers.current
            or select.select([connection.sock], [], [], 0)[0]
        ):
            self.close()
            connection = self._connect(min(CONNECT_TIMEOUT_S, limit_s))
        connection.sock.settimeout(limit_s)
        connection.request("POST", path, json.dumps(body), HEADERS)
        return connection.getresponse()

    def _connect(self, timeout_s: float) -> HTTPConnection:
        reasons = []
        for _ in self._servers.addresses:
            self._server = self._servers.current
            host, port = self._servers.addresses[self._server]
            connection = HTTPConnection(host, port, timeout=timeout_s)
            try:
                connection.connect()
            except OSError as error:
                connection.close()
                reasons.append(f"{self._server_name()}: {error.strerror or error}")
                self._use_next_server()
            else:
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connection = connection
                return connection
        raise StoreUnavailable(f"{self._url} cannot be reached ({'; '.join(reasons)})")

    def _raise(self, status: int, answer: dict[str, Any]) -> None:
        """Raise the exception for an answer with an error."""
        code = answer.get("code")
        reason = str(answer.get("message") or answer.get("error") or f"HTTP status {status}")
        server = f"{self._url} at {self._server_name()}"
        if "larger than max" in reason:
            raise AnswerTooLarge
        if code in NO_PERMISSION or (code == INVALID_ARGUMENT and "user name" in reason):
            raise StoreFailed(
                f"{server}: {reason} (Tidelog sends no user name: allow requests without one, or use another etcd)"
            )
        if code == RESOURCE_EXHAUSTED:
            raise StoreUnavailable(f"{server}: {reason}")
        if code in (INVALID_ARGUMENT, OUT_OF_RANGE) or status == 404:
            raise StoreFailed(f"{server}: {reason}")
        # The cause may be a missing leader, a timeout inside the cluster or a server that stops. Another server may
        # answer.
        self.close()
        self._use_next_server()
        raise AnswerLost(f"{server}: {reason}")

    def _use_next_server(self) -> None:
        self._servers.failed(self._server)

    def _server_name(self) -> str:
        return self._servers.name(self._server)
