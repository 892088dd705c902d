"""Adds the files of each micro-batch to a directory exactly once, for every reader that lists the directory.

1. The executors write files into `_tidelog/staged/...`, with names that end with `.staged`, so that no reader reads
   them as data.
2. The driver decides: it creates `_tidelog/<query>/<batch>.json`, the manifest, with the list of these files and of
   their names in the directory. Only one process can create it; another one uses the manifest that exists.
3. The driver renames the files. The names contain the query and the micro-batch.

After a crash between the second and the third step, the next driver renames the remaining files. After a crash before
the second step, the micro-batch is written again, and the files of the failed attempt are removed when it is committed.
"""

import hashlib
import json
import os
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidelog.pipelines.declarations import PipelineError, SinkContext
from tidelog.pipelines.sinks.stores import is_url, sync_directory
from tidelog.pipelines.sinks.written_files import WrittenFile

CONTROL = "_tidelog"
"""Directory of staged files and manifests. Spark, Hive and Arrow ignore names that begin with an underscore."""
MANIFESTS_MAX = 1000
"""Number of manifests that are retained for each query. A second driver of the same query, which runs by mistake, does
no harm unless it is more micro-batches behind than this."""


@dataclass(frozen=True)
class DirectoryTarget:
    """A directory to which one query appends files."""

    root: Path
    query: str
    suffix: str
    """End of the names of files, as `.parquet`."""
    sink: str
    """The sink as error messages name it."""

    @property
    def name(self) -> str:
        """A short name of the query for names of files."""
        return hashlib.sha256(self.query.encode()).hexdigest()[:12]

    @property
    def manifests(self) -> Path:
        return self.root / CONTROL / self.name

    def staging(self, batch_id: int) -> str:
        """Return a new directory for the files of one attempt, relative to the root, with a slash at its end."""
        return f"{CONTROL}/staged/{self.name}-{batch_id}-{uuid.uuid4().hex[:8]}/"

    def finish(self, batch_id: int) -> bool:
        """If the manifest of the micro-batch exists, rename the files that are still staged, and return True."""
        manifest = self._manifest(batch_id)
        try:
            files = json.loads(manifest.read_text())["files"]
        except FileNotFoundError:
            return False
        changed: dict[Path, None] = {}
        for file in files:
            target = self.root / file["name"]
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                try:
                    (self.root / file["staged"]).rename(target)
                except FileNotFoundError:
                    if not target.exists():  # else another process has renamed it in the meantime
                        raise PipelineError(
                            f"{self.root}: the file {file['name']} of micro-batch {batch_id} is missing. If it was "
                            f"removed on purpose, remove it from {manifest} too"
                        ) from None
            changed[target.parent] = None
        for directory in changed:
            sync_directory(directory)
        self._remove_attempts(batch_id)
        return True

    def commit(self, batch_id: int, directory: str, files: list[WrittenFile]) -> None:
        """Make the files, which are below `directory`, part of the data, unless the micro-batch has a manifest."""
        entries = []
        for number, file in enumerate(files):
            partition = file.path.removeprefix(directory).rpartition("/")[0]
            name = f"{self.name}-{batch_id:09}-{number:05}{self.suffix}"
            entries.append(
                {"staged": file.path, "name": f"{partition}/{name}" if partition else name, "rows": file.rows}
            )
        self._decide(batch_id, json.dumps({"query": self.query, "batch": batch_id, "files": entries}, indent=1))
        self.finish(batch_id)
        self._remove_old_manifests(batch_id)

    def _decide(self, batch_id: int, text: str) -> None:
        """Create the manifest with its whole content in one step, unless it exists."""
        self.manifests.mkdir(parents=True, exist_ok=True)
        temporary = self.manifests / f"{batch_id}-{uuid.uuid4().hex}.tmp"
        try:
            with open(temporary, "x") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            with suppress(FileExistsError):
                self._manifest(batch_id).hardlink_to(temporary)
        finally:
            temporary.unlink()
        sync_directory(self.manifests)

    def _remove_attempts(self, batch_id: int) -> None:
        """Remove the files of micro-batches up to this one that are still staged. They belong to failed attempts."""
        for attempt in (self.root / CONTROL / "staged").glob(f"{self.name}-*"):
            if int(attempt.name.split("-")[1]) <= batch_id:
                shutil.rmtree(attempt, ignore_errors=True)

    def _remove_old_manifests(self, batch_id: int) -> None:
        if batch_id >= MANIFESTS_MAX:
            self._manifest(batch_id - MANIFESTS_MAX).unlink(missing_ok=True)

    def _manifest(self, batch_id: int) -> Path:
        return self.manifests / f"{batch_id:09}.json"


def directory_target(sink: str, location: str, context: SinkContext, suffix: str) -> DirectoryTarget:
    """Return the directory at `location` for one query. Raises PipelineError if the sink cannot write there, or cannot
    write the output mode of the query.
    """
    if is_url(location):
        raise PipelineError(f"{sink}: an object store cannot rename files in one step: use delta() or iceberg()")
    if context.output_mode != "append":
        raise PipelineError(f"{sink}: the output mode {context.output_mode} needs delta() or sql()")
    return DirectoryTarget(Path(location), context.query, suffix, sink)
