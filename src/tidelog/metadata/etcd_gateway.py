"""Blocking calls to etcd's JSON gateway (version 3 of the API), over persistent HTTP/1.1 connections.

If a server does not accept a connection, the next server is tried, until each server was tried once. A call that only
reads is also repeated on the other servers if its answer is lost. A call that changes something is never repeated after
its request was sent, since only the caller can find out whether it was executed.
"""

import json
import select
import socket
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final

from tidelog.metadata.store import StoreFailed, StoreUnavailable

CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 5.0
"""Longest time that a call waits for its answer. A watch has its own time."""
ANSWER_BYTES_MAX: Final = 64 << 20
"""Upper bound on the bytes of one answer. etcd answers with at most 4 MiB, which take more bytes in JSON."""

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, OUT_OF_RANGE = 3, 8, 11
NO_PERMISSION = (7, 16)
"""Codes of gRPC in answers with an error. A call that gets one of these codes was not executed."""


class AnswerLost(Exception):
    """A call was sent, and it is unknown whether it was executed: no answer has arrived, or the answer is an error that
    does not say it.
    """


class AnswerTooLarge(Exception):
    """The answer exceeds the limit of the gateway. A call for fewer keys may succeed."""


def to_text(value: bytes) -> str:
    """Return bytes in the text form that the gateway expects."""
    return b64encode(value).decode()


def to_bytes(text: str) -> bytes:
    return b64decode(text)


class EtcdGateway:
    """One connection to one of the servers. All methods except `interrupt` must be called on one thread at a time."""

    def __init__(self, url: str, servers: Sequence[tuple[str, int]]) -> None:
        """`url` names the store in errors."""
        self._url = url
        self._servers = servers
        self._next_server = 0
        self._connection: HTTPConnection | None = None

    def read(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make a call that changes nothing. Raises StoreUnavailable, StoreFailed, AnswerTooLarge."""
        reason: Exception | None = None
        # The first attempt may use an open connection whose server does not answer any more.
        for _ in range(max(2, len(self._servers))):
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

    def watch(self, key: bytes, revision: int, timeout_s: float) -> bool:
        """Wait until the key is changed at `revision` or later, for at most about `timeout_s` seconds.

        Return False if the server could not be reached or closed the connection; the caller should then pause before it
        calls again. Otherwise return True, also if the time is over.
        """
        body = {"create_request": {"key": to_text(key), "start_revision": str(revision)}}
        try:
            response = self._send("/v3/watch", body)
            assert self._connection is not None
            self._connection.sock.settimeout(timeout_s)
            while line := response.readline(1 << 20):
                result = json.loads(line).get("result", {})
                # etcd cancels the watch if the history from `revision` on was compacted, so the key may have changed.
                if result.get("events") or result.get("canceled"):
                    return True
        except TimeoutError:
            return True
        except (OSError, HTTPException, ValueError, StoreUnavailable):
            self._use_next_server()
        finally:
            self.close()
        return False

    def interrupt(self) -> None:
        """End a call that runs on another thread: it fails as if the server had closed the connection."""
        connection = self._connection
        stream = connection.sock if connection is not None else None
        if stream is not None:
            with suppress(OSError):  # the socket may be closed already
                stream.shutdown(socket.SHUT_RDWR)

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

    def _send(self, path: str, body: dict[str, Any]) -> HTTPResponse:
        """Send a request to the first server that accepts a connection. Raises StoreUnavailable if none does."""
        connection = self._connection or self._connect()
        # If an idle connection is readable, the server has closed it.
        if connection.sock is None or select.select([connection.sock], [], [], 0)[0]:
            self.close()
            connection = self._connect()
        connection.sock.settimeout(ANSWER_TIMEOUT_S)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse()

    def _connect(self) -> HTTPConnection:
        reasons = []
        for _ in self._servers:
            host, port = self._servers[self._next_server]
            connection = HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
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
            raise StoreFailed(f"{server}: {reason} (Tidelog uses etcd without a user: allow that, or use another etcd)")
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
        self._next_server = (self._next_server + 1) % len(self._servers)

    def _server_name(self) -> str:
        host, port = self._servers[self._next_server]
        return f"{host}:{port}"
