"""The HTTP sink and the HTTP source, with a server that fails on purpose."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

import pyarrow as pa

from tidelog.pipelines.declarations import PipelineError, TemporaryError
from tidelog.pipelines.sinks.http import Http, Paging, http, send_rows
from tidelog.pipelines.sources.http import Endpoint, HttpStreamReader, Staging


class Server:
    """Remembers the requests. `statuses` are the answers to the next requests; then all are 200."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.received: list[tuple[str, Any]] = []
        """Idempotency keys and bodies of accepted requests."""
        self.records: list[dict[str, int]] = []
        self.reason = b"the reason"
        """The body of an answer to a POST request."""
        self.location = ""
        """Where an answer with status 301 or 307 redirects."""
        self.page_size = 3
        self.paging = "next"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = outer.statuses.pop(0) if outer.statuses else 200
                if status == 200 or status == 599:  # 599: handled, but the answer is lost
                    outer.received.append((self.headers["Idempotency-Key"], json.loads(body)))
                if status == 599:
                    self.close_connection = True
                    return
                if status == 598:  # not an answer of HTTP
                    self.wfile.write(b"garbage\r\n\r\n")
                    self.close_connection = True
                    return
                self.answer(status, outer.reason)

            def do_GET(self) -> None:
                status = outer.statuses.pop(0) if outer.statuses else 200
                query = parse_qs(urlsplit(self.path).query)
                self.answer(status, json.dumps(outer.page(query.get("after", [None])[0])).encode())

            def answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                if status in (301, 307):
                    self.send_header("Location", outer.location)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/things?token=hunter2"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def page(self, after: str | None) -> Any:
        begin = int(after or 0)
        if self.paging == "last id":
            begin = int(after) + 1 if after else 0
        chosen = self.records[begin : begin + self.page_size]
        if self.paging != "next":
            return chosen
        has_more = begin + self.page_size < len(self.records)
        return {"data": {"items": chosen}, "next": begin + self.page_size if has_more else None}


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.server.shutdown()
    server.server.server_close()


def texts(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"body": [json.dumps({"id": n}) for n in numbers]})]


def keyed(number: int, body: Any) -> tuple[str, Any]:
    """A request as the server remembers it, with the key that it must have."""
    text = json.dumps(body, separators=(",", ": ")).encode()
    return f"query-7-0-{number}-{hashlib.sha256(text).hexdigest()[:16]}", body


def test_rows_are_posted_with_keys(server: Server) -> None:
    sink = http(server.url)
    [result] = send_rows(iter(texts(1, 2, 3)), sink.request, 2, "query-7-0")
    assert result.to_pydict() == {"requests": [2]}
    assert server.received == [keyed(0, [{"id": 1}, {"id": 2}]), keyed(1, [{"id": 3}])]
    list(send_rows(iter(texts(4)), sink.request, 1, "query-7-0"))
    assert server.received[-1] == keyed(0, {"id": 4})


def test_a_repeated_request_has_the_same_key(server: Server) -> None:
    server.statuses = [503, 429, 409, 599]
    list(send_rows(iter(texts(1)), http(server.url).request, 1, "query-7-0"))
    assert server.received == [keyed(0, {"id": 1})] * 2, "at least once"


def test_other_requests_for_the_same_rows_have_other_keys(server: Server) -> None:
    """Between two attempts at a micro-batch, a restart may change rows_per_request or a filter. An endpoint that
    remembers keys must not take the rows for those of the first attempt."""
    sink = http(server.url)
    server.statuses = [200, 400]
    with pytest.raises(PipelineError):
        list(send_rows(iter(texts(1, 2, 3)), sink.request, 1, "k"))
    list(send_rows(iter(texts(1, 2, 3)), sink.request, 2, "k"))
    handled = dict(reversed(server.received))  # the endpoint handles the first request with a key
    rows = [row for body in handled.values() for row in (body if isinstance(body, list) else [body])]
    assert {row["id"] for row in rows} == {1, 2, 3}


def test_an_answer_that_is_not_http_is_a_failure_that_may_pass(server: Server) -> None:
    server.statuses = [598]
    list(send_rows(iter(texts(1)), http(server.url).request, 1, "k"))
    assert [body for _, body in server.received] == [{"id": 1}]
    server.statuses = [598, 598]
    with pytest.raises(PipelineError, match="POST failed after 2 attempts: garbage"):
        list(send_rows(iter(texts(1)), http(server.url, attempts=2).request, 1, "k"))


def test_a_read_has_no_key_and_is_not_repeated_after_a_conflict(server: Server) -> None:
    server.statuses = [409]
    with pytest.raises(PipelineError, match="GET failed after 1 attempt: status 409"):
        Endpoint(http(server.url).request, Paging("data.items", "next", None, "after")).page(None, 0)


def test_errors_name_the_endpoint_and_no_secret(server: Server) -> None:
    server.statuses = [400]
    with pytest.raises(
        PipelineError, match=r"http://127\.0\.0\.1:\d+/\*\*\*: POST failed after 1 attempt: status 400"
    ) as refused:
        list(send_rows(iter(texts(1)), http(server.url).request, 1, "k"))
    assert not isinstance(refused.value, TemporaryError)
    server.statuses = [500] * 2
    with pytest.raises(TemporaryError, match="after 2 attempts: status 500") as raised:
        list(send_rows(iter(texts(1)), http(server.url, attempts=2).request, 1, "k"))
    assert "hunter2" not in str(raised.value)
    sink = http(server.url, headers={"Authorization": "hunter2"})
    assert "hunter2" not in repr(sink) + repr(sink.request)
    with pytest.raises(PipelineError, match="the URL does not begin with http"):
        http("ftp://host/x")


@pytest.mark.parametrize("echo", ["/services/T024BE7LD/B0 24?x=1", "T024BE7LD", "services/T024BE7LD/B0%2024"])
def test_the_path_of_a_url_is_not_shown(server: Server, echo: str) -> None:
    """For a webhook, it is the secret. A server may repeat it in its answer."""
    server.statuses, server.reason = [404], f"no {echo} here".encode()
    sink = http(server.url.replace("/things", "/services/T024BE7LD/B0%2024"))
    with pytest.raises(PipelineError, match=r"no .*here") as raised:
        list(send_rows(iter(texts(1)), sink.request, 1, "k"))
    for shown in (str(raised.value), repr(sink), repr(sink.request), sink.describe()):
        assert "T024" not in shown
        assert "B0" not in shown
        assert "127.0.0.1" in shown or shown == repr(sink.request)
    assert (
        http("https://example.org").describe() == http("https://example.org/").describe() == "http https://example.org"
    )
    with pytest.raises(PipelineError, match="the URL does not begin with http") as raised:
        http("htps://user:hunter2@host/T024BE7LD")
    assert "T024" not in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirected_post_is_an_error_because_its_rows_would_be_lost(server: Server, status: int) -> None:
    server.statuses, server.location = [status], server.url
    with pytest.raises(PipelineError, match=f"status {status} .*: give the URL to which the server redirects"):
        list(send_rows(iter(texts(1)), http(server.url).request, 1, "k"))
    assert server.received == []


def test_a_redirected_get_is_followed_on_the_same_host_only(server: Server) -> None:
    endpoint = Endpoint(http(server.url).request, Paging("data.items", "next", None, "after"))
    server.records = [{"id": 1}]
    server.statuses, server.location = [301], server.url
    assert endpoint.page(None, 0).records == ['{"id": 1}']
    server.statuses, server.location = [301], server.url.replace("127.0.0.1", "localhost")
    with pytest.raises(PipelineError, match="status 301 "):
        endpoint.page(None, 0)


def reader(source: Http, staging: Path) -> HttpStreamReader:
    options = {"secretRequest": json.dumps(vars(source.request)), "paging": json.dumps(vars(source.paging))}
    return HttpStreamReader(options | {"staging": str(staging), "intervalS": "0"})


def read_on(stream: HttpStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    end = stream.latestOffset(start, None)  # type: ignore[arg-type]
    return end, [json.loads(row[0])["id"] for part in stream.partitions(start, end) for row in stream.read(part)]


@pytest.mark.parametrize("paging", ["next", "last id", "count"])
def test_an_endpoint_is_read_once(server: Server, tmp_path: Path, paging: str) -> None:
    server.paging = paging
    options: dict[str, Any] = {
        "next": {"records": "data.items", "cursor": "next"},
        "last id": {"cursor_field": "id"},
        "count": {},
    }[paging]
    source = http(server.url, parameter="after", **options)
    start: dict[str, Any] = {"page": 0}
    server.statuses = [503]
    end, rows = read_on(reader(source, tmp_path), start)
    assert (end, rows) == (start, [])
    server.records = [{"id": n} for n in range(7)]
    end, rows = read_on(reader(source, tmp_path), start)
    assert rows == list(range(7))
    server.records += [{"id": n} for n in range(7, 12)]
    stream = reader(source, tmp_path)
    last, rows = read_on(stream, end)
    assert rows == list(range(7, 12))
    replayed = [json.loads(row[0])["id"] for part in stream.partitions(end, last) for row in stream.read(part)]
    assert replayed == rows, "the pages are stored"
    stream.commit(end)
    assert read_on(reader(source, tmp_path), last) == (last, [])
    stream.commit(last)
    assert len(list(tmp_path.glob("*.json"))) == 1
    server.records.append({"id": 12})
    stream = reader(source, tmp_path)
    stream.prepareForTriggerAvailableNow()
    last, rows = read_on(stream, last)
    server.records.append({"id": 13})
    assert (rows, read_on(stream, last)) == ([12], (last, []))
    with pytest.raises(PipelineError, match="page 1 is missing"):
        stream.partitions({"page": 0}, last)


class TestEmptyPages:
    """An endpoint whose answers always have a cursor that was not there before, also if they have no records."""

    ANSWERS_MAX = 50

    @pytest.fixture
    def endless(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
        """Return the cursors of the requests. After ANSWERS_MAX requests, the endpoint fails."""
        cursors: list[str | None] = []

        def page(after: str | None) -> Any:
            cursors.append(after)
            assert len(cursors) < self.ANSWERS_MAX
            position = int(after or 0)
            return {"items": [each for each in server.records if each["at"] == position], "next": position + 1}

        monkeypatch.setattr(server, "page", page)
        return cursors

    def stream(self, server: Server, staging: Path) -> HttpStreamReader:
        source = http(server.url, records="items", cursor="next", parameter="after", attempts=1, timeout_s=5)
        return reader(source, staging)

    def test_a_poll_ends_with_an_empty_page_and_the_next_one_continues_after_it(
        self, server: Server, endless: list[str | None], tmp_path: Path
    ) -> None:
        start: dict[str, Any] = {"page": 0}
        assert read_on(self.stream(server, tmp_path), start) == (start, [])
        assert endless == [None]
        once = self.stream(server, tmp_path)
        once.prepareForTriggerAvailableNow()
        assert read_on(once, start) == (start, [])
        assert endless == [None, "1"], "another process continues after the empty page"
        server.records = [{"id": 7, "at": 2}, {"id": 8, "at": 3}, {"id": 9, "at": 5}]
        stream = self.stream(server, tmp_path)
        end, rows = read_on(stream, start)
        assert (end["page"], rows) == (2, [7, 8])
        assert endless[2:] == ["2", "3", "4"]
        stream.commit(end)
        last, rows = read_on(self.stream(server, tmp_path), end)
        assert (last["page"], rows) == (3, [9])
        assert endless[5:] == ["5", "6"]

    def test_a_page_that_was_stored_later_has_the_newer_cursor(
        self, server: Server, endless: list[str | None], tmp_path: Path
    ) -> None:
        read_on(self.stream(server, tmp_path), {"page": 0})
        page = {"cursor": 30, "known": 0, "records_before": 0, "records": ['{"id": 1}']}
        assert Staging(tmp_path).add(1, page)
        read_on(self.stream(server, tmp_path), {"page": 1})
        assert endless == [None, "30"]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("has_identity", [False, True], ids=["early position", "position"])
def test_a_lost_directory_of_pages_is_an_error(server: Server, tmp_path: Path, has_identity: bool, once: bool) -> None:
    """The pages of the new directory would have the numbers that the position counts as processed."""
    server.paging = "count"
    server.records = [{"id": n} for n in range(5)]
    source = http(server.url, parameter="after")
    stream = reader(source, tmp_path / "a")
    end, rows = read_on(stream, {"page": 0})
    assert (end["page"], rows) == (2, list(range(5)))
    stream.commit(end)
    if not has_identity:
        end = {"page": 2}
    for _ in range(3):  # each attempt must fail, and none may store pages
        other = reader(source, tmp_path / "b")
        if once:
            other.prepareForTriggerAvailableNow()
        with pytest.raises(PipelineError, match=r"/b: .* up to 2, but this directory has pages only up to 0: .* reset"):
            other.latestOffset(end, None)  # type: ignore[arg-type]
    assert not list((tmp_path / "b").glob("*.json"))
    server.records.append({"id": 5})
    assert read_on(reader(source, tmp_path / "a"), end)[1] == [5]


def test_pages_of_another_stream_are_not_continued(server: Server, tmp_path: Path) -> None:
    server.paging = "count"
    server.records = [{"id": n} for n in range(5)]
    source = http(server.url, parameter="after")
    end, _ = read_on(reader(source, tmp_path / "a"), {"page": 0})
    read_on(reader(source, tmp_path / "b"), {"page": 0})
    with pytest.raises(PipelineError, match=r"/b: .* up to 2, but this directory belongs to another stream"):
        reader(source, tmp_path / "b").latestOffset(end, None)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"/b: .* up to 2, but this directory belongs to another stream"):
        reader(source, tmp_path / "b").partitions({"page": 0}, end)


def test_a_wrong_answer_is_an_error(server: Server, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="the answer is not a list: set records='FIELD' in http"):
        reader(http(server.url), tmp_path).latestOffset({"page": 0}, None)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="the field nothing of the answer is not a list"):
        reader(http(server.url, records="nothing"), tmp_path).latestOffset({"page": 0}, None)  # type: ignore[arg-type]
