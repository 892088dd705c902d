"""A TCP proxy in front of a server of a metadata store: it can be away, and it can lose one answer."""

import contextlib
import select
import socket
import threading

PING_BYTES_MAX = 12
"""ZooKeeper's clients send pings of this size at any time; they are no requests of the test."""


class Proxy:
    """Forwards connections on `port` to `target`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        """The port stays the same while the proxy is away."""
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_away = False
        self._loses_answer = False
        self.answers_lost = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def go_away(self) -> None:
        """Close all connections, and refuse new ones."""
        with self._lock:
            self._is_away = True
            pairs, self._pairs = self._pairs, []
        _shut(self._listener)
        self._listener.close()
        for pair in pairs:
            _shut(*pair)

    def come_back(self) -> None:
        if self._is_away:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._is_away = False
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def lose_next_answer(self) -> None:
        """Forward the next request, wait for its answer, drop the answer and close the connection."""
        self._loses_answer = True

    def close(self) -> None:
        if not self._is_away:
            self.go_away()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_away:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(self._target, 5)
                except OSError:
                    client.close()
                    continue
                self._pairs.append((client, server))
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        is_losing = False
        with contextlib.suppress(OSError, ValueError), client, server:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if source is client:
                        if self._loses_answer and len(data) > PING_BYTES_MAX:
                            self._loses_answer, is_losing = False, True
                        server.sendall(data)
                    elif is_losing:
                        self.answers_lost += 1
                        return
                    else:
                        client.sendall(data)


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
