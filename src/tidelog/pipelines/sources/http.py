"""Polls an HTTP endpoint for pages of JSON records.

An endpoint cannot be asked to repeat an old answer. So each page is stored in the staging directory, together with the
cursor of the next page, before it becomes part of a micro-batch. The position of a stream is the number of the last
page that became part of a micro-batch. When a micro-batch has been committed, the pages before its last page are
removed. If a page has no records, only the cursor of the next page is stored.

The position also contains the identity of the staging directory. In another directory, the numbers of the pages would
begin with 1 again. The stream would then skip all pages up to its position.
"""

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pyspark_tidelog.formats import json as json_format
from tidelog.pipelines.declarations import PipelineError, SourceContext, interval_s, refused_begin
from tidelog.pipelines.failures import HTTP_REMEDY
from tidelog.pipelines.sinks.http import Http, Paging, Request
from tidelog.pipelines.sinks.stores import create_directory, disk_errors, local_path, sync_directory
from tidelog.pipelines.sources.json_texts import element_texts, parse_float, with_escapes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_PAGE: dict[str, Any] = {"cursor": None, "known": 0, "records_before": 0, "records": []}
"""Used instead of the newest stored page while no page is stored. In a stored page, `cursor` and `known` say where the
next poll continues: in the endpoint's page at `cursor`, after its first `known` records, which are stored already.
`records_before` is the number of records in all earlier stored pages."""
STAGING = "staging"
"""Name of the option with the directory of the pages."""
MOVED_CURSOR = "cursor"
"""Name of the file with the cursor of the newest answer that had a new cursor but no records."""
IDENTITY = "identity"
"""Name of the file with the identity of the directory."""
PAGES_MAX = 100
"""Upper bound on the pages of one micro-batch."""


def load_http(source: Http, context: SourceContext) -> "DataFrame":
    from pyspark.sql import functions

    spark = context.spark
    if context.begin not in {None, "earliest"}:
        raise refused_begin(source.describe(), "a stream begins with the first page of the endpoint", context)
    if not context.is_streaming:
        page = Endpoint(source.request, source.paging).page(None, 0)
        rows = page.records if context.rows_max is None else page.records[: context.rows_max]
        frame = spark.createDataFrame([(row,) for row in rows], "value string")
    else:
        if source.staging is None:
            raise PipelineError(
                f"{source.describe()}: a stream stores the pages that it reads: name a directory for them, as in "
                "http(..., staging='pages')"
            )
        spark.dataSource.register(HttpDataSource)
        options = {
            # Spark hides the value of an option whose name contains "secret".
            "secretRequest": json.dumps(vars(source.request)),
            "paging": json.dumps(vars(source.paging)),
            STAGING: local_path(source.staging),
            "intervalS": str(interval_s(source.interval, source.describe())),
        }
        frame = spark.readStream.format(HttpDataSource.name()).options(**options).load()
    if source.schema is None:
        return frame
    decoded = frame.select(json_format(source.schema).decode(functions.col("value")).alias("decoded"))
    message = functions.concat(
        functions.lit(f"pipeline {context.pipeline}: a record of {source.describe()} cannot be parsed: "),
        functions.col("decoded.error"),
        functions.lit(HTTP_REMEDY),
    )
    # The check is a filter and not a column, because Spark does not compute a column that the pipeline's function does
    # not use.
    is_parsed = functions.when(
        functions.col("decoded.error").isNotNull(), functions.raise_error(message).cast("boolean")
    ).otherwise(functions.lit(True))
    return decoded.where(is_parsed).select("decoded.record.*")


@dataclass(frozen=True)
class Page:
    records: list[str]
    """As JSON texts, as the endpoint has written them: numbers have all their digits."""
    cursor: Any
    """The cursor of the next page; None if the answer has none."""


@dataclass(frozen=True)
class Endpoint:
    """The endpoint, asked page by page."""

    request: Request
    paging: Paging

    def page(self, cursor: Any, records_before: int) -> Page:
        """Return the page at `cursor`, which is None for the first page. If the endpoint has no cursors, return the
        page after the first `records_before` records. Raises PipelineError if the answer is wrong."""
        place = f"http {self.request.shown_url}"
        paging = self.paging
        if paging.cursor is None and paging.cursor_field is None:
            cursor = records_before
        parts = urlsplit(self.request.url)
        query = parts.query
        if cursor is not None:
            query = f"{query}&{urlencode({paging.parameter: cursor})}".lstrip("&")
        url = urlunsplit(parts._replace(query=query))
        content = self.request.send(url, "GET", None, {"Accept": "application/json"})
        try:
            document = content.decode(json.detect_encoding(content), "surrogatepass")
            answer = json.loads(document, parse_float=parse_float)
        except ValueError as error:
            raise PipelineError(f"{place}: the answer is not JSON: {error}") from error
        records = nested(answer, paging.records) if paging.records else answer
        if not isinstance(records, list):
            where = f"the field {paging.records} of the answer" if paging.records else "the answer"
            raise PipelineError(
                f"{place}: {where} is not a list: set records='FIELD' in http(), where FIELD is the name of the field"
                " that contains the list"
            )
        next_cursor = None
        if paging.cursor is not None:
            next_cursor = nested(answer, paging.cursor)
        elif paging.cursor_field is not None and records:
            next_cursor = nested(records[-1], paging.cursor_field)
            if next_cursor is None:
                raise PipelineError(f"{place}: the last record has no field {paging.cursor_field}")
        return Page(element_texts(document, paging.records), next_cursor)


def nested(value: Any, path: str) -> Any:
    """Return the field at a path such as `data.next`; None if there is no such field."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


class Staging:
    """The stored pages of one stream. Their numbers begin with 1."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        create_directory(directory)

    def identity(self) -> str:
        """Return the identity of the directory. The first call for a directory chooses it."""
        path = self._directory / IDENTITY
        if not path.exists():
            temporary = self._write({"identity": uuid.uuid4().hex})
            try:
                with suppress(FileExistsError):
                    path.hardlink_to(temporary)
            finally:
                temporary.unlink()
            sync_directory(self._directory)
        return str(json.loads(path.read_text())["identity"])

    def check(self, position: Mapping[str, Any]) -> None:
        """Raise PipelineError if the directory is not the one to which the position of a stream belongs, or if it is an
        older copy. Call this before pages are stored.
        """
        last, identity = self.last(), self.identity()
        # An earlier version of Tidelog stored no identities in positions.
        if position["page"] <= last and position.get(STAGING, identity) == identity:
            return
        raise PipelineError(
            f"{self._directory}: the stream has processed the pages up to {position['page']}, but this directory"
            f" {f'has pages only up to {last}' if position['page'] > last else 'belongs to another stream'}: it is"
            " not the directory of earlier runs (a relative path depends on the directory in which the run starts), or"
            " it was lost, or restored from an older copy. The directory and the pipeline's checkpoint belong together:"
            " restore the directory, or remove it and then remove the checkpoint with: tidelog pipeline reset NAME"
        )

    def last(self) -> int:
        """Return the number of the newest page, or 0 if there is none."""
        return max((int(path.stem) for path in self._directory.glob("*.json")), default=0)

    def load(self, number: int) -> dict[str, Any]:
        try:
            page: dict[str, Any] = json.loads(self._path(number).read_text())
        except FileNotFoundError:
            raise PipelineError(
                f"{self._directory}: page {number} is missing, so the micro-batch cannot be repeated. The directory "
                "and the pipeline's checkpoint belong together: restore the directory, or remove both and begin again"
            ) from None
        return page

    def add(self, number: int, page: dict[str, Any]) -> bool:
        """Store a page under `number`. If another process has stored a page with this number, change nothing and return
        False."""
        temporary = self._write(page)
        try:
            self._path(number).hardlink_to(temporary)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        sync_directory(self._directory)
        return True

    def moved_cursor(self, number: int) -> Any:
        """Return the cursor that `move_cursor` stored together with `number`, the number of the newest page. Return
        None if there is no such cursor."""
        try:
            moved = json.loads((self._directory / MOVED_CURSOR).read_text())
        except FileNotFoundError:
            return None
        return moved["cursor"] if moved["page"] == number else None

    def move_cursor(self, number: int, cursor: Any) -> None:
        """Store the cursor at which the page after page `number` begins. This cursor replaces the cursor that page
        `number` contains."""
        self._write({"page": number, "cursor": cursor}).replace(self._directory / MOVED_CURSOR)
        sync_directory(self._directory)

    def remove_before(self, number: int) -> None:
        for path in self._directory.glob("*.json"):
            if int(path.stem) < number:
                path.unlink(missing_ok=True)

    def _write(self, content: Mapping[str, Any]) -> Path:
        """Write a new file with a temporary name, and return its path."""
        temporary = self._directory / f"{uuid.uuid4().hex}.tmp"
        try:
            with disk_errors("http(): a page cannot be stored", temporary), open(temporary, "x") as stream:
                json.dump(content, stream)
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012}.json"


@dataclass(frozen=True)
class Records(InputPartition):
    """The records of one stored page. The executors get them from the driver and need no access to the directory."""

    texts: list[str]


class HttpDataSource(DataSource):
    """The class behind `format("tidelog-http")`."""

    @classmethod
    def name(cls) -> str:
        return "tidelog-http"

    def schema(self) -> StructType:
        return StructType().add("value", "string")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return HttpStreamReader(self.options)


class HttpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the records of an endpoint page by page."""

    def __init__(self, options: Mapping[str, str]) -> None:
        request = json.loads(options["secretRequest"])
        request["headers"] = tuple((name, value) for name, value in request["headers"])
        self._endpoint = Endpoint(Request(**request), Paging(**json.loads(options["paging"])))
        self._staging = Staging(Path(options[STAGING]))
        self._interval_s = float(options["intervalS"])
        self._polled_at_s = float("-inf")
        self._has_target = False
        self._target: int | None = None
        """With the trigger `availableNow`: the page with which the query ends. The first call of `latestOffset` sets
        it."""

    def initialOffset(self) -> dict[str, Any]:
        return {"page": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the first call of `latestOffset` store all pages that the endpoint has then: the query ends with the last
        one. This method does not store the pages itself: the directory may belong to another query, and this method
        cannot check that, because it does not know the query's position.
        """
        self._has_target = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._staging.check(start)
        if self._has_target and self._target is None:
            while self._poll(PAGES_MAX) == PAGES_MAX:
                pass
            self._target = self._staging.last()
        last = self._target
        if last is None:
            is_due = time.monotonic() - self._polled_at_s >= self._interval_s
            if is_due and self._poll(PAGES_MAX) < PAGES_MAX:
                self._polled_at_s = time.monotonic()
            last = self._staging.last()
        page = min(last, start["page"] + PAGES_MAX)
        return start if page <= start["page"] else {"page": page, STAGING: self._staging.identity()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._staging.check(end)
        pages = range(start["page"] + 1, end["page"] + 1)
        # Pages that an earlier version has stored may contain lone surrogates.
        return [Records([with_escapes(text) for text in self._staging.load(number)["records"]]) for number in pages]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        assert isinstance(partition, Records)
        for text in partition.texts:
            yield (text,)

    def commit(self, end: dict[str, Any]) -> None:
        """Remove the pages before `end`. The page at `end` remains, because it says where the next one begins."""
        self._staging.remove_before(end["page"])

    def _poll(self, pages_max: int) -> int:
        """Store up to `pages_max` new pages, and return how many were stored. Fewer than `pages_max` are stored if the
        endpoint has no more records, or if another process stores a page at the same time."""
        number = self._staging.last()
        previous = self._staging.load(number) if number else NO_PAGE
        cursor, known = previous["cursor"], previous["known"]
        moved = self._staging.moved_cursor(number)
        if moved is not None:
            cursor, known = moved, 0
        count = previous["records_before"] + len(previous["records"])
        stored = 0
        while stored < pages_max:
            page = self._endpoint.page(cursor, count)
            records = page.records[known:]
            has_new_cursor = page.cursor is not None and page.cursor != cursor
            if not page.records and has_new_cursor:
                # Some endpoints give a new cursor with each answer, even if there are no more records. So this poll
                # ends, and the next poll continues at the new cursor.
                self._staging.move_cursor(number + stored, page.cursor)
                break
            if not records and not has_new_cursor:
                break
            # If answers contain cursors, a page without a new cursor is the last one. The next poll requests it again,
            # and skips the known records.
            known = known + len(records) if not has_new_cursor and self._endpoint.paging.cursor is not None else 0
            cursor = page.cursor if has_new_cursor else cursor
            if records:
                content = {"cursor": cursor, "known": known, "records_before": count, "records": records}
                if not self._staging.add(number + stored + 1, content):
                    break
                stored, count = stored + 1, count + len(records)
            if known:
                break
        return stored
