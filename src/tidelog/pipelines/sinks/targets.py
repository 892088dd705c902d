"""Adds files to a directory, so that every reader that lists it finds the rows of each micro-batch exactly once.

1. The executors write files into `_tidelog/staged/...`, with names that end with `.staged`, so that no reader reads
   them as data.
2. The driver decides: it creates the manifest, `_tidelog/<query>/<batch>.json`, with the list of these files and of
   their final names. Only one process can create the manifest; every other process uses the manifest that exists.
3. The driver gives the files their final names: in a directory it renames them, and in an object store it copies them.
   The names contain the query and the micro-batch. Each file appears with its whole content.

After a crash between the second and the third step, the next driver completes the third step. After a crash before the
second step, the micro-batch is written again. When it is committed, the files of the failed attempt are removed.
"""

import hashlib
import json
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypedDict

from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.batch_numbers import newer_target
from tidelog.pipelines.sinks.stores import Store
from tidelog.pipelines.sinks.written_files import WrittenFile

CONTROL = "_tidelog"
"""Directory of staged files and manifests. Spark, Hive and Arrow ignore names that begin with an underscore."""
MANIFESTS_MAX = 1000
"""The manifests of this many micro-batches are retained for each query. A second driver of the same query, which runs
by mistake, finds the manifest of its micro-batch, or a later one, and does no harm."""


class Entry(TypedDict):
    """A file that a manifest lists. `staged` and `name` are paths relative to the root."""

    staged: str
    name: str
    rows: int


@dataclass(frozen=True)
class FileTarget(ABC):
    """A place to which one query appends files."""

    location: str
    """The path or URL of the root: the directory to which the files are added."""
    query: str
    suffix: str
    """The end of the file names, for example `.parquet`."""
    sink: str
    """The name of the sink in error messages, for example `parquet s3://bucket/sales`."""

    @property
    @abstractmethod
    def store(self) -> Store:
        """Where the executors write."""

    @abstractmethod
    def _read_manifest(self, batch_id: int) -> str | None: ...

    @abstractmethod
    def _later_manifest(self, batch_id: int) -> str | None:
        """Return the file name of a manifest of a later micro-batch of the query, or None if there is none."""

    @abstractmethod
    def _decide(self, batch_id: int, text: str) -> None:
        """Create the manifest with its whole content in one step, unless it exists."""

    @abstractmethod
    def _publish(self, files: list[Entry]) -> str | None:
        """Give each file its final name, unless this was done before. Return the name of a missing file, or None."""

    @abstractmethod
    def _remove_attempts(self, batch_id: int) -> None:
        """Remove the files that are still staged for this and earlier micro-batches. They belong to failed attempts."""

    @abstractmethod
    def _remove_manifest(self, batch_id: int) -> None:
        """Remove the manifest of a micro-batch, if it exists."""

    @property
    def name(self) -> str:
        """A short name of the query, which is used in file names."""
        return hashlib.sha256(self.query.encode()).hexdigest()[:12]

    def staging(self, batch_id: int) -> str:
        """Return a new path for the directory of one attempt, relative to the root, with a slash at its end."""
        return f"{CONTROL}/staged/{self.name}-{batch_id}-{uuid.uuid4().hex[:8]}/"

    def check_newest(self, batch_id: int) -> None:
        """Raise PipelineError if the target contains a later micro-batch of the query (see `batch_numbers`)."""
        later = self._later_manifest(batch_id)
        if later is not None:
            raise newer_target(self.sink, self.query, int(later.removesuffix(".json")), batch_id)

    def finish(self, batch_id: int) -> bool:
        """If the manifest of the micro-batch exists, give its files their final names, and return True."""
        manifest = self._read_manifest(batch_id)
        if manifest is None:
            return False
        missing = self._publish(json.loads(manifest)["files"])
        if missing is not None:
            raise PipelineError(
                f"{self.location}: the file {missing} of micro-batch {batch_id} is missing. If it was "
                f"removed on purpose, remove its entry in {self.location}/{self._manifest(batch_id)} too"
            )
        self._remove_attempts(batch_id)
        return True

    def commit(self, batch_id: int, directory: str, files: list[WrittenFile]) -> None:
        """Give `files`, which were staged in `directory`, their final names. If the micro-batch has a manifest already,
        do this for the files of this manifest instead.
        """
        entries = []
        for number, file in enumerate(files):
            partition = file.path.removeprefix(directory).rpartition("/")[0]
            name = f"{self.name}-{batch_id:09}-{number:05}{self.suffix}"
            entries.append(Entry(staged=file.path, name=f"{partition}/{name}" if partition else name, rows=file.rows))
        self._decide(batch_id, json.dumps({"query": self.query, "batch": batch_id, "files": entries}, indent=1))
        self.finish(batch_id)

    def remove_old_manifest(self, batch_id: int) -> None:
        """Remove the manifest of the micro-batch that is MANIFESTS_MAX micro-batches older than `batch_id`.

        This must be called at the end of each micro-batch, also of one without rows or one that was repeated after a
        crash. Otherwise a manifest would remain for ever.
        """
        if batch_id >= MANIFESTS_MAX:
            self._remove_manifest(batch_id - MANIFESTS_MAX)

    def _manifest(self, batch_id: int) -> str:
        """Return the name of a manifest, relative to the root."""
        return f"{CONTROL}/{self.name}/{batch_id:09}.json"

    def _attempt_batch(self, name: str) -> int | None:
        """Return the micro-batch of the staged directory `name`; None if this directory belongs to another query."""
        query, _, rest = name.partition("-")
        return int(rest.partition("-")[0]) if query == self.name else None
