"""The state directory of a pipeline: identity, checkpoints, status and lock.

STATE/NAME/identity.json    the identity, where queries begin, and the identities before it
STATE/NAME/IDENTITY/SINK/   Spark's checkpoint of one query
STATE/NAME/status.json      the newest figures of the run
STATE/NAME/lock             locked by the process that runs the pipeline
"""

import fcntl
import json
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.pipelines.declarations import PipelineError

DEFAULT_STATE = Path(".tidelog-pipelines")


class Identity(NamedTuple):
    id: str
    """Changes when the pipeline is reset or replayed."""
    begin: str | int | None
    """Where the queries begin: `earliest`, `latest`, milliseconds since the epoch, or None for the sources' choice."""


class PipelineState:
    """The state directory of one pipeline."""

    def __init__(self, base: Path, pipeline: str) -> None:
        self.pipeline = pipeline
        self.directory = base.absolute() / pipeline
        self._lock_descriptor: int | None = None

    @property
    def exists(self) -> bool:
        return (self.directory / "identity.json").exists()

    def identity(self) -> Identity | None:
        """Return the stored identity; None if the pipeline has never run. Raises PipelineError if it is damaged."""
        path = self.directory / "identity.json"
        try:
            document = json.loads(path.read_text())
            return Identity(document["id"], document["begin"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(
                f"pipeline {self.pipeline}: {path} is damaged ({error}): restore it, or remove {self.directory} to"
                " begin again"
            ) from None

    def create_identity(self, begin: str | int | None) -> Identity:
        identity = Identity(uuid.uuid4().hex[:8], begin)
        self._write("identity.json", {"id": identity.id, "begin": begin, "created_ms": time.time_ns() // 1_000_000})
        return identity

    def checkpoint(self, identity: Identity, sink: str) -> Path:
        return self.directory / identity.id / sink

    def reset(self) -> None:
        """Forget the identity and remove its checkpoints. The next run begins again."""
        identity = self.identity()
        for name in ("identity.json", "status.json"):
            (self.directory / name).unlink(missing_ok=True)
        if identity is not None:
            shutil.rmtree(self.directory / identity.id, ignore_errors=True)

    def write_status(self, status: dict[str, Any]) -> None:
        self._write("status.json", status, durable=False)

    def read_status(self) -> dict[str, Any] | None:
        try:
            status: dict[str, Any] = json.loads((self.directory / "status.json").read_text())
            return status
        except (OSError, ValueError):
            return None

    def _write(self, name: str, document: dict[str, Any], *, durable: bool = True) -> None:
        """Replace a file as a whole. A reader sees either the old or the new content."""
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = self.directory / f".{name}.new"
        with open(temporary, "w") as file:
            json.dump(document, file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(self.directory / name)

    def lock(self) -> None:
        """Reserve the pipeline for this process. Raises PipelineError if another process runs it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise PipelineError(
                f"pipeline {self.pipeline} is running already with the state directory {self.directory.parent}: stop"
                " that process first"
            ) from None
        self._lock_descriptor = descriptor

    def unlock(self) -> None:
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def is_running(self) -> bool:
        """Return whether a process holds the lock."""
        try:
            descriptor = os.open(self.directory / "lock", os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False


def stored_pipelines(base: Path) -> list[PipelineState]:
    """Return the states of all pipelines in the state directory, by name."""
    if not base.is_dir():
        return []
    return [
        PipelineState(base, path.name)
        for path in sorted(base.iterdir())
        if (path / "identity.json").exists() or (path / "status.json").exists()
    ]
