"""`http()`: an HTTP endpoint that is the sink or the source of a pipeline. The format is JSON.

The sink is at least once: an endpoint may have received a request whose answer was lost. Each request has the header
`Idempotency-Key`, and a repeated micro-batch sends the same bodies with the same keys, so that an endpoint that
remembers the keys handles each row once. Each task on the executors sends its own part of the rows.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark_tidelog.errors import counted
from pyspark_tidelog.http_requests import Limits, RequestFailed, send
from tidelog.pipelines.declarations import Opened, PipelineError, SinkContext, SourceContext, TemporaryError
from tidelog.pipelines.sinks.column_names import check_names

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

IDEMPOTENCY_KEY = "Idempotency-Key"
STILL_RUNS = 409
"""Some endpoints answer with this status if an earlier request with the same idempotency key is still in progress. So
a request with an idempotency key is sent again after this status."""
ANSWER_BYTES_MAX = 64 << 20
"""Upper bound on the size of an answer, in bytes. If an answer is larger, the request fails."""
PATH_PART_MIN = 8
"""Only parts of a URL's path with at least this many characters are removed from messages. Shorter parts may also occur
inside unrelated words."""
FIRST_PAUSE_S = 0.2
BACKOFF_MAX_S = 10.0
"""Pauses between attempts grow from FIRST_PAUSE_S to BACKOFF_MAX_S, in seconds. The header `Retry-After` of an answer
makes a pause longer."""


def http(
    url: str,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    rows_per_request: int = 100,
    requests_at_once: int = 2,
    attempts: int = 8,
    timeout_s: float = 30.0,
    records: str = "",
    cursor: str | None = None,
    cursor_field: str | None = None,
    parameter: str = "cursor",
    interval: str = "5 seconds",
    staging: str | None = None,
    schema: str | None = None,
) -> "Http":
    """Return the endpoint at `url`.

    As a sink: the HTTP method of each request is `method`, and the body is a JSON array of up to `rows_per_request`
    rows. With `rows_per_request=1`, the body is the JSON object of one row. `requests_at_once` is the number of tasks
    that send requests. A request is sent up to `attempts` times, with growing pauses. In each attempt,
    the wait for the connection, and the wait for each part of the answer, take at most `timeout_s`.

    As a source of a stream: every `interval`, GET requests read pages of JSON until there are no new records. `records`
    names the field of the answer that contains the list of records; dots separate the names of nested fields. Without
    `records`, the answer itself is the list. `parameter` names the URL's parameter that tells the endpoint where the
    page begins. The value is taken from the previous answer: `cursor` names a field of the answer, and `cursor_field` a
    field of its last record. If neither is set, the value is the number of records so far. Pages are stored in the
    directory `staging` before they are processed, so that a micro-batch can be repeated. `schema` names the columns of
    the records, and a record that does not fit `schema` stops the pipeline. Without `schema`, the only column is
    `value`, the JSON text.

    Raises PipelineError if the arguments are not consistent.
    """
    if urlsplit(url).scheme not in {"http", "https"}:
        raise PipelineError("http: the URL does not begin with http:// or https://")
    if rows_per_request < 1 or requests_at_once < 1 or attempts < 1:
        raise PipelineError("http: rows_per_request, requests_at_once and attempts must be at least 1")
    request = Request(url, method, tuple((headers or {}).items()), attempts, timeout_s)
    paging = Paging(records, cursor, cursor_field, parameter)
    return Http(request, rows_per_request, requests_at_once, paging, interval, staging, schema)


@dataclass(frozen=True)
class Request:
    """How requests are sent. The URL and the headers may contain secrets, so `repr` leaves them out."""

    url: str = field(repr=False)
    method: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    attempts: int
    timeout_s: float

    @property
    def shown_url(self) -> str:
        """The URL without its user, password, path and parameters. The path of a webhook is a secret."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{'/***' if parts.path.strip('/') else ''}"

    def without_path(self, text: str) -> str:
        """Return the text of a failure without the URL's path and the parts of the path, because a server may repeat
        them in its answer. A path or a part with fewer than PATH_PART_MIN characters is not removed.
        """
        path = urlsplit(self.url).path.strip("/")
        parts = [each for each in (path, *path.split("/")) if len(each) >= PATH_PART_MIN]
        for each in sorted({*parts, *map(unquote, parts)}, key=len, reverse=True):
            text = text.replace(each, "***")
        return text

    def send(self, url: str, method: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        """Send one request, repeat it after failures that may be temporary, and return the answer.

        Raises TemporaryError if the last failure may be temporary, and PipelineError if not. The message names the
        failure.
        """
        limits = Limits(self.attempts, self.timeout_s, ANSWER_BYTES_MAX, FIRST_PAUSE_S, BACKOFF_MAX_S)
        all_headers = dict(self.headers) | dict(headers)
        repeated = (STILL_RUNS,) if IDEMPOTENCY_KEY in headers else ()
        try:
            return send(url, limits, method=method, body=body, headers=all_headers, also_repeated=repeated)
        except RequestFailed as error:
            kind = TemporaryError if error.may_be_temporary else PipelineError
            after = counted(error.attempts, "attempt")
            failure = self.without_path(str(error))
            raise kind(f"http {self.shown_url}: {method} failed after {after}: {failure}") from None


@dataclass(frozen=True)
class Paging:
    """How a source finds the records of an answer and the next page."""

    records: str
    cursor: str | None
    cursor_field: str | None
    parameter: str


@dataclass(frozen=True)
class Http:
    """An HTTP endpoint: a sink and a source."""

    request: Request
    rows_per_request: int
    requests_at_once: int
    paging: Paging
    interval: str
    staging: str | None
    schema: str | None

    def __repr__(self) -> str:
        return f"http({self.request.shown_url!r})"

    @property
    def begins(self) -> tuple[str, ...]:
        """Where a stream of this source can begin (see `declarations.BEGINS`)."""
        return ("earliest",)

    def describe(self) -> str:
        return f"http {self.request.shown_url}"

    def open(self, context: SinkContext) -> Opened:
        if context.output_mode == "complete":
            raise PipelineError(f"{self.describe()}: output_mode 'complete' needs the sink delta(), iceberg() or sql()")
        return OpenedHttp(self, context.query)

    def load(self, context: SourceContext) -> "DataFrame":
        from tidelog.pipelines.sources.http import load_http

        return load_http(self, context)


@dataclass(frozen=True)
class OpenedHttp:
    """An endpoint that is open for one query."""

    sink: Http
    query: str

    def write(self, batch: "DataFrame", batch_id: int) -> None:
        check_names(batch.schema, self.sink.describe())
        bodies = json_bodies(batch)
        # The division into requests depends only on the rows, so a repeated micro-batch has the same requests.
        ordered = bodies.repartition(self.sink.requests_at_once, "body").sortWithinPartitions("body")
        request, rows_per_request, prefix = self.sink.request, self.sink.rows_per_request, f"{self.query}-{batch_id}"

        def send(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            from pyspark import TaskContext

            context = TaskContext.get()
            part = context.partitionId() if context is not None else 0
            return send_rows(batches, request, rows_per_request, f"{prefix}-{part}")

        ordered.mapInArrow(send, "requests long").collect()

    def close(self) -> None:
        pass


def json_bodies(batch: "DataFrame") -> "DataFrame":
    """Return the rows as JSON texts, in the column `body`."""
    from pyspark.sql import functions

    from pyspark_tidelog.formats.json_format import json_text

    return batch.select(json_text(functions.struct("*"), {}).alias("body"))


def send_rows(
    batches: "Iterator[pa.RecordBatch]", request: Request, rows_per_request: int, key: str
) -> "Iterator[pa.RecordBatch]":
    """Send the rows of one task, which are JSON texts, and yield the number of requests as one row. Request number n
    has the idempotency key `key`-n-hash.
    """
    import pyarrow as pa

    waiting: list[str] = []
    number = 0
    for row in (text for batch in batches for text in batch.column(0).to_pylist()):
        waiting.append(row)
        if len(waiting) == rows_per_request:
            post(request, waiting, rows_per_request == 1, f"{key}-{number}")
            waiting, number = [], number + 1
    if waiting:
        post(request, waiting, False, f"{key}-{number}")
        number += 1
    yield pa.RecordBatch.from_pydict({"requests": pa.array([number], pa.int64())})


def post(request: Request, rows: list[str], is_single: bool, key: str) -> None:
    """Send one request. Its idempotency key is `key` and a hash of the body.

    If the pipeline is changed before a micro-batch is repeated, the repeated requests have different bodies. If their
    keys had no hash, an endpoint that remembers keys would ignore these bodies.
    """
    body = (rows[0] if is_single else f"[{','.join(rows)}]").encode()
    headers = {"Content-Type": "application/json", IDEMPOTENCY_KEY: f"{key}-{hashlib.sha256(body).hexdigest()[:16]}"}
    request.send(request.url, request.method, body, headers)
