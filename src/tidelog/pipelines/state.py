"""The state directory of a pipeline: identity, checkpoints, status and lock.

STATE/NAME/identity.json           the identity, and where its queries begin
STATE/NAME/IDENTITY/SINK/          Spark's checkpoint of one query, unless --checkpoints names another place
STATE/NAME/IDENTITY.SINK.started   exists when the query may have written a micro-batch
STATE/NAME/IDENTITY.queries.json   for each sink, the identifier of its query
STATE/NAME/IDENTITY.letters.json   for each source, the sink whose query writes the dead letters of this source
STATE/NAME/begins.json             for each source, where a stream of it can begin
STATE/NAME/obsolete.json           checkpoints that must still be removed, and are not in the state directory
STATE/NAME/status.json             the newest figures of the run
STATE/NAME/lock                    locked by the process that runs the pipeline
"""

import fcntl
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.pipelines.begins import AcceptedBegins
from tidelog.pipelines.checkpoints import ObsoleteCheckpoints, place_of_checkpoints, remove_local
from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.stores import create_directory, sync_directory
from tidelog.runtime.clock import SystemClock

logger = logging.getLogger("tidelog.pipelines")

LOCK_PATIENCE_S = 1.0
"""Time for which `lock` tries again, in seconds."""
DEFAULT_STATE = Path(".tidelog-pipelines")


class Identity(NamedTuple):
    id: str
    """Changes when the pipeline is reset or replayed."""
    begin: str | int | None
    """Where the queries begin: `earliest`, `latest`, milliseconds since the epoch, or None if each source decides."""
    checkpoints: str | None = None
    """Directory or URI of the checkpoints; None if they are in the state directory."""


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
        """Return the stored identity; None if there is none. Raises PipelineError if the file is damaged."""
        path = self.directory / "identity.json"
        try:
            document = json.loads(path.read_text())
            return Identity(document["id"], document["begin"], document.get("checkpoints"))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(
                f"pipeline {self.pipeline}: {path} is damaged ({error}): restore it, or remove {self.directory} to"
                " begin again"
            ) from None

    def create_identity(self, begin: str | int | None, checkpoints: str | None = None) -> Identity:
        identity = Identity(uuid.uuid4().hex[:8], begin, checkpoints)
        self._write("identity.json", identity._asdict() | {"created_ms": SystemClock.now_ms()})
        return identity

    def accepted_begins(self) -> dict[str, AcceptedBegins]:
        """Return where the sources can begin, as the last run has stored it. If the file is missing or damaged, return
        an empty dictionary. Earlier versions of Tidelog did not write the file.
        """
        try:
            document = json.loads((self.directory / "begins.json").read_text())
            return {
                str(name): AcceptedBegins(source=str(each["source"]), begins=list(map(str, each["begins"])))
                for name, each in document.items()
            }
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def store_begins(self, accepted: Mapping[str, AcceptedBegins]) -> None:
        if accepted != self.accepted_begins():
            self._write("begins.json", dict(accepted))

    def mark_started(self, identity: Identity, sink: str) -> None:
        """Store the fact that a micro-batch of the query is about to be written."""
        self._write(self.started_path(identity, sink).name, {})

    def has_started(self, identity: Identity) -> bool:
        """Return whether any query of this identity may have written a micro-batch."""
        return any(self.directory.glob(f"{identity.id}.*.started"))

    def started_sinks(self, identity: Identity) -> set[str]:
        """Return the sinks whose queries may have written a micro-batch."""
        markers = self.directory.glob(f"{identity.id}.*.started")
        return {each.name.removeprefix(f"{identity.id}.").removesuffix(".started") for each in markers}

    def started_path(self, identity: Identity, sink: str) -> Path:
        return self.directory / f"{identity.id}.{sink}.started"

    def query_names(self, identity: Identity) -> dict[str, str]:
        """Return the stored mapping from each sink to the identifier of its query. Earlier versions of Tidelog did not
        store it. Raises PipelineError if the file is damaged.
        """
        return self._read_texts(self._queries_path(identity), "if no sink was ever added, removed or renamed")

    def store_query_names(self, identity: Identity, names: Mapping[str, str]) -> None:
        """Add identifiers of queries to the stored ones. A sink that is not in `names` keeps its identifier."""
        stored = self.query_names(identity)
        complete = {**stored, **names}
        if complete != stored:
            self._write(self._queries_path(identity).name, complete)

    def _queries_path(self, identity: Identity) -> Path:
        return self.directory / f"{identity.id}.queries.json"

    def letter_writers(self, identity: Identity) -> dict[str, str]:
        """Return the stored mapping from each source to the sink whose query writes the dead letters of this source.
        The key is the name of the source's parameter in the pipeline's function. Raises PipelineError if the file is
        damaged.
        """
        return self._read_texts(self._letters_path(identity), "if the order of the sinks has never changed")

    def _read_texts(self, path: Path, removable_if: str) -> dict[str, str]:
        """Return the JSON object of texts in the file `path`; an empty dictionary if there is no such file."""
        try:
            return {str(name): str(text) for name, text in json.loads(path.read_text()).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as error:
            raise PipelineError(
                f"pipeline {self.pipeline}: {path} is damaged ({error}): restore it; or remove it, {removable_if}"
            ) from None

    def store_letter_writers(self, identity: Identity, writers: Mapping[str, str]) -> None:
        if writers != self.letter_writers(identity):
            self._write(self._letters_path(identity).name, dict(writers))

    def _letters_path(self, identity: Identity) -> Path:
        return self.directory / f"{identity.id}.letters.json"

    def check_checkpoint(
        self,
        identity: Identity,
        sink: str,
        checkpoints: str | None,
        checkpoint: str,
        has_offsets: Callable[[str], bool],
    ) -> None:
        """Raise PipelineError if a query that has written micro-batches would begin again with an empty checkpoint.

        With an empty checkpoint, the query would number its micro-batches from 0 again. The sink would write nothing
        for the first of them, because it has already written micro-batches with the same numbers.

        `checkpoints` is the place of all checkpoints, None for the state directory. `checkpoint` is the path or URI of
        this query's checkpoint. `has_offsets` returns whether a checkpoint contains a planned micro-batch.
        """
        if not self.started_path(identity, sink).exists():
            return
        replay = f"tidelog pipeline replay {self.pipeline} --from TIME"
        # An earlier version of Tidelog stored relative paths.
        stored = None if identity.checkpoints is None else place_of_checkpoints(identity.checkpoints)
        if checkpoints != stored:
            here, before = (place or str(self.directory) for place in (checkpoints, identity.checkpoints))
            raise PipelineError(
                f"pipeline {self.pipeline}: its checkpoints are in {before}, not in {here}: set --checkpoints to the"
                " place where they are (if it is the state directory, leave the option out), or begin again with:"
                f" {replay}"
            )
        if not has_offsets(checkpoint):
            raise PipelineError(
                f"pipeline {self.pipeline}: the checkpoint {checkpoint} is missing or empty: restore its newest state"
                f" (the sinks refuse an older one), or begin again with: {replay}"
            )

    def checkpoint(self, identity: Identity, sink: str) -> Path:
        return self.directory / identity.id / sink

    def reset(self) -> None:
        """Remove the identity, its figures and its checkpoints. If checkpoints under --checkpoints can be removed only
        by Spark, or cannot be removed now, they are listed for `remove_obsolete`.
        """
        identity = self.identity()
        if identity is not None and identity.checkpoints is not None:
            place = place_of_checkpoints(identity.checkpoints)
            # Write this list before the identity is removed. Afterwards, only the list says where the checkpoints are.
            self._write_obsolete([*self.obsolete(), ObsoleteCheckpoints(place, self.pipeline, identity.id)])
        for name in ("identity.json", "status.json"):
            (self.directory / name).unlink(missing_ok=True)
        if identity is not None:
            shutil.rmtree(self.directory / identity.id, ignore_errors=True)
            self._letters_path(identity).unlink(missing_ok=True)
            self._queries_path(identity).unlink(missing_ok=True)
            for marker in self.directory.glob(f"{identity.id}.*.started"):
                marker.unlink()
        self.remove_obsolete(remove_local)

    def obsolete(self) -> list[ObsoleteCheckpoints]:
        """Return the checkpoints that must still be removed. They belong to earlier identities."""
        path = self.directory / "obsolete.json"
        try:
            return [
                ObsoleteCheckpoints(place, self.pipeline, identity) for place, identity in json.loads(path.read_text())
            ]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError) as error:
            raise PipelineError(
                f"pipeline {self.pipeline}: {path} is damaged ({error}): remove it; old checkpoints may then remain"
                " under --checkpoints"
            ) from None

    def remove_obsolete(self, remove: Callable[[ObsoleteCheckpoints], bool]) -> None:
        """Remove checkpoints of earlier identities with `remove`. If `remove` returns False or raises OSError, the
        checkpoints remain listed, and the next call tries again.
        """
        obsolete = self.obsolete()
        remaining = []
        for each in obsolete:
            try:
                is_removed = remove(each)
            except OSError as error:
                is_removed = False
                logger.warning("checkpoints_not_removed place=%s identity=%s %s", each.place, each.identity, error)
            if not is_removed:
                remaining.append(each)
        if remaining != obsolete:
            self._write_obsolete(remaining)

    def _write_obsolete(self, obsolete: list[ObsoleteCheckpoints]) -> None:
        if obsolete:
            self._write("obsolete.json", [[each.place, each.identity] for each in obsolete])
        else:
            (self.directory / "obsolete.json").unlink(missing_ok=True)

    def write_status(self, status: dict[str, Any]) -> None:
        self._write("status.json", status, durable=False)

    def read_status(self) -> dict[str, Any] | None:
        """Return the newest figures, as `write_status` stored them; None if there are none.

        Raises PipelineError if the file cannot be read, or has no JSON object.
        """
        path = self.directory / "status.json"
        try:
            status = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise PipelineError(f"{path} cannot be read: {error}") from None
        if not isinstance(status, dict):
            raise PipelineError(f"{path} has no JSON object")
        return status

    def _write(self, name: str, document: dict[str, Any] | list[Any], *, durable: bool = True) -> None:
        """Replace a file as a whole. A reader sees either the old or the new content."""
        create_directory(self.directory)
        temporary = self.directory / f".{name}.new"
        with open(temporary, "w") as file:
            json.dump(document, file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(self.directory / name)
        if durable:
            sync_directory(self.directory)

    def lock(self) -> None:
        """Reserve the pipeline for this process. Raises PipelineError if another process runs it."""
        create_directory(self.directory)
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        # Another process may hold the lock for a moment in `is_running`.
        deadline_s = time.monotonic() + LOCK_PATIENCE_S
        while not _try_lock(descriptor):
            if time.monotonic() < deadline_s:
                time.sleep(0.05)
                continue
            os.close(descriptor)
            raise PipelineError(
                f"pipeline {self.pipeline} is running already with the state directory {self.directory.parent}: first"
                " stop the process that runs it"
            )
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
            # The lock is shared. If it were exclusive, and two processes called `is_running` at the same time, one of
            # them would mistake the other for the process that runs the pipeline.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def stored_pipelines(base: Path) -> list[PipelineState]:
    """Return the states of all pipelines that have state in `base`, sorted by name."""
    if not base.is_dir():
        return []
    return [
        PipelineState(base, path.name)
        for path in sorted(base.iterdir())
        if (path / "identity.json").exists() or (path / "status.json").exists()
    ]
