"""Requests over HTTP: what is repeated, after which pause, and what messages contain."""

import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_tidelog import http_requests
from pyspark_tidelog.http_requests import (
    RETRY_AFTER_MAX_S,
    Limits,
    RequestFailed,
    backoff_s,
    retry_after_s,
    send,
    without_secrets,
)

LIMITS = Limits(attempts=3, timeout_s=10.0, answer_bytes_max=100, first_pause_s=0.5, pause_max_s=4.0)
SECRETS = {"Authorization": "Bearer hunter2-token", "Accept": "text/plain"}


class Server:
    """Gives the next answer to each request: the status, the headers and the body."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.requests: list[tuple[str, str | None]] = []
        """Paths and authorizations."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append((self.path, self.headers["Authorization"]))
                status, headers, body = outer.answers.pop(0)
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def fail(self, limits: Limits = LIMITS, path: str = "", **options: Any) -> RequestFailed:
        with pytest.raises(RequestFailed) as raised:
            send(self.url + path, limits, headers=SECRETS, **options)
        return raised.value


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(http_requests, "time", SimpleNamespace(sleep=taken.append, monotonic=time.monotonic))
    return taken


@pytest.mark.parametrize(("status", "attempts"), [(400, 1), (404, 1), (409, 1), (425, 1), (501, 1)])
def test_what_a_repetition_would_not_change_is_not_repeated(server: Server, status: int, attempts: int) -> None:
    server.answers = [(status, {}, b"")]
    failure = server.fail()
    assert (failure.status, failure.attempts) == (status, attempts)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 507])
def test_a_failure_that_may_pass_is_repeated_up_to_the_limit(server: Server, status: int, pauses: list[float]) -> None:
    server.answers = [(status, {}, b""), (status, {}, b""), (200, {}, b"yes")]
    assert send(server.url, LIMITS, headers={}) == b"yes"
    assert len(pauses) == 2
    server.answers = [(status, {}, b"")] * 3
    assert (server.fail().attempts, server.answers) == (3, [])


def test_a_refused_connection_is_repeated_up_to_the_limit(pauses: list[float]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # it does not listen
        with pytest.raises(RequestFailed, match="Connection refused") as raised:
            send(f"http://127.0.0.1:{unused.getsockname()[1]}/", LIMITS, headers=SECRETS)
    assert (raised.value.status, raised.value.attempts, len(pauses)) == (None, 3, 2)


def test_pauses_grow_and_differ_between_tasks() -> None:
    for attempt, longest_s in [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (5, 4.0), (5000, 4.0)]:
        drawn = [backoff_s(attempt, LIMITS) for _ in range(20)]
        assert longest_s / 2 <= min(drawn) < max(drawn) <= longest_s


NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "pause_s"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("86400", RETRY_AFTER_MAX_S),
        (format_datetime(NOW + timedelta(seconds=9), usegmt=True), 9.0),
        (format_datetime(NOW + timedelta(seconds=9)).replace("+0000", "-0000"), 9.0),
        (format_datetime(NOW - timedelta(seconds=9), usegmt=True), 0.0),
        (format_datetime(NOW + timedelta(days=9), usegmt=True), RETRY_AFTER_MAX_S),
        ("", 0.0),
        ("-5", 0.0),
        ("soon", 0.0),
    ],
)
def test_retry_after_is_read(text: str, pause_s: float) -> None:
    assert retry_after_s(text, NOW) == pause_s


def test_retry_after_lengthens_a_pause(server: Server, pauses: list[float]) -> None:
    server.answers = [(429, {"Retry-After": "20"}, b""), (503, {"Retry-After": "0"}, b""), (200, {}, b"")]
    send(server.url, LIMITS, headers={})
    assert pauses[0] == 20.0
    assert 0.5 <= pauses[1] <= 1.0


def test_an_answer_is_bounded_and_complete(server: Server) -> None:
    server.answers = [(200, {}, b"x" * 100)]
    assert len(send(server.url, LIMITS, headers={})) == 100
    server.answers = [(200, {}, b"x" * 101)]
    failure = server.fail()
    assert (str(failure), failure.attempts) == ("the answer is longer than 100 bytes", 1)
    server.answers = [(200, {"Content-Length": "9"}, b"xyz")] * 3
    assert str(server.fail()) == "the answer ended after 3 of 9 bytes"


def test_a_slow_answer_ends_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by 6 s at each look at it, so the second part of the answer is late."""
    moments = iter(range(0, 1000, 6))
    clock = SimpleNamespace(sleep=lambda _: None, monotonic=lambda: next(moments))
    monkeypatch.setattr(http_requests, "time", clock)
    monkeypatch.setattr(http_requests, "READ_BYTES", 1)
    server.answers = [(200, {}, b"abc")] * 3
    assert str(server.fail()) == "the answer was not complete within 10 s"


def test_messages_have_no_secrets(server: Server) -> None:
    body = b"no access for hunter2-token at /x?key=s%26cret&a=b: s&cret"
    server.answers = [(403, {}, body)]
    assert str(server.fail(path="x?key=s%26cret&a=b")) == (
        "status 403 Forbidden: no access for *** at /x?key=***&a=b: ***"
    )
    wrong: list[tuple[str, dict[str, str]]] = [("hunter2 x", {}), ("", {"X": "hunter2\nY: 1"}), ("", {"X": "ł2"})]
    for path, headers in wrong:
        with pytest.raises(RequestFailed, match=r"^the URL or a header is not valid \(\w+\)$"):
            send(server.url + path, LIMITS, headers=headers)
    shown = without_secrets("denied for anna with p%40ss and p@ss", "http://anna:p%40ss@host/", {})
    assert shown == "denied for *** with *** and ***"


def test_secrets_stay_on_the_host(server: Server) -> None:
    other = server.url.replace("127.0.0.1", "localhost")
    server.answers = [(302, {"Location": "/here"}, b""), (200, {}, b"a")]
    assert send(server.url, LIMITS, headers=SECRETS) == b"a"
    server.answers = [(302, {"Location": other}, b"")]
    assert server.fail().status == 302
    server.answers = [(302, {"Location": f"{other}there"}, b""), (200, {}, b"b")]
    assert send(server.url, LIMITS, headers=SECRETS, any_host=True) == b"b"
    token = SECRETS["Authorization"]
    assert server.requests == [("/", token), ("/here", token), ("/", token), ("/", token), ("/there", None)]
    server.answers = [(302, {"Location": "ftp://localhost/x"}, b"")]
    assert server.fail(any_host=True).status == 302
