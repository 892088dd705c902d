"""The `FileTarget` for a directory of a file system. It uses renames and hard links."""

import os
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidelog.pipelines.sinks.stores import LocalStore, Store, create_directory, disk_errors, sync_directory
from tidelog.pipelines.sinks.targets import CONTROL, Entry, FileTarget


@dataclass(frozen=True)
class DirectoryTarget(FileTarget):
    """A directory to which one query appends files."""

    @property
    def root(self) -> Path:
        return Path(self.location)

    @property
    def store(self) -> Store:
        return LocalStore(self.location, self.sink)

    def _read_manifest(self, batch_id: int) -> str | None:
        try:
            return (self.root / self._manifest(batch_id)).read_text()
        except FileNotFoundError:
            return None

    def _later_manifest(self, batch_id: int) -> str | None:
        newest = Path(self._manifest(batch_id)).name
        manifests = (self.root / self._manifest(batch_id)).parent.glob("*.json")
        return max((each.name for each in manifests if each.name > newest), default=None)

    def _publish(self, files: list[Entry]) -> str | None:
        with disk_errors(self.sink, self.root):
            return self._rename(files)

    def _rename(self, files: list[Entry]) -> str | None:
        changed: dict[Path, None] = {}
        for file in files:
            target = self.root / file["name"]
            create_directory(target.parent)
            if not target.exists():
                try:
                    (self.root / file["staged"]).rename(target)
                except FileNotFoundError:
                    if not target.exists():  # if it exists, another process has renamed the file
                        return file["name"]
            changed[target.parent] = None
        for directory in changed:
            sync_directory(directory)
        return None

    def _decide(self, batch_id: int, text: str) -> None:
        manifest = self.root / self._manifest(batch_id)
        with disk_errors(self.sink, manifest):
            self._create(manifest, text)

    def _create(self, manifest: Path, text: str) -> None:
        create_directory(manifest.parent)
        temporary = manifest.parent / f"{manifest.stem}-{uuid.uuid4().hex}.tmp"
        try:
            with open(temporary, "x") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            with suppress(FileExistsError):
                manifest.hardlink_to(temporary)
        finally:
            temporary.unlink(missing_ok=True)  # the file does not exist if it could not be created
        sync_directory(manifest.parent)

    def _remove_attempts(self, batch_id: int) -> None:
        for attempt in (self.root / CONTROL / "staged").glob(f"{self.name}-*"):
            batch = self._attempt_batch(attempt.name)
            if batch is not None and batch <= batch_id:
                shutil.rmtree(attempt, ignore_errors=True)

    def _remove_manifest(self, batch_id: int) -> None:
        (self.root / self._manifest(batch_id)).unlink(missing_ok=True)
