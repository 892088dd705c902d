"""Places for the files of a sink. The driver creates a store, and Spark pickles it for the executors."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from tidelog.pipelines.declarations import TemporaryError
from tidelog.pipelines.sinks.object_errors import store_errors

DISK_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EACCES: "permit the user of the pipeline to write there",
    errno.EPERM: "permit the user of the pipeline to write there",
    errno.EROFS: "mount the file system for writing",
}
"""What to do after an error of a file system, by the error's number (errno)."""


class Store(Protocol):
    def create(self, path: str) -> Any:
        """Return a context manager with a new binary file at `path`, which is relative to the store's root.

        When the context ends without an error, the file is complete and durable.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file of an attempt that failed. The file may be missing."""
        ...


@dataclass(frozen=True)
class LocalStore:
    """A directory that the driver and all executors see at the same path."""

    root: str
    """Absolute path."""
    label: str
    """The name of the sink in error messages, for example `parquet /data/sales`."""

    @contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        file = Path(self.root) / path
        with disk_errors(self.label, file):
            create_directory(file.parent)
            with open(file, "xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            sync_directory(file.parent)

    def remove(self, path: str) -> None:
        (Path(self.root) / path).unlink(missing_ok=True)


@dataclass(frozen=True)
class DeltaStore:
    """The storage of a Delta table. The library deltalake accesses it with the sink's `storage_options`."""

    url: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    """Options of the object store, as pairs. They may contain secrets."""
    label: str
    """The name of the sink in error messages, for example `delta s3://bucket/sales`."""

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        from deltalake.exceptions import DeltaError
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        with store_errors(self.label, self.url, self.options, (OSError, DeltaError)):
            file_system = PyFileSystem(DeltaStorageHandler(self.url, dict(self.options)))
            with file_system.open_output_stream(path) as stream:
                yield stream

    def remove(self, path: str) -> None:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        PyFileSystem(DeltaStorageHandler(self.url, dict(self.options))).delete_file(path)


@dataclass(frozen=True)
class IcebergStore:
    """The storage of an Iceberg table, through pyiceberg's FileIO with the catalog's properties."""

    location: str
    properties: tuple[tuple[str, str], ...] = field(repr=False)
    """Properties of the catalog, as pairs. They may contain secrets."""
    label: str
    """The name of the sink in error messages, for example `iceberg shop.sales`."""

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        from pyiceberg.io import load_file_io

        with store_errors(self.label, self.location, self.properties, (OSError,)):
            file_io = load_file_io(dict(self.properties), self.location)
            with file_io.new_output(f"{self.location}/{path}").create() as stream:
                yield stream

    def remove(self, path: str) -> None:
        from pyiceberg.io import load_file_io

        load_file_io(dict(self.properties), self.location).delete(f"{self.location}/{path}")


def is_url(path: str) -> bool:
    """Return whether `path` names an object store or another file system than the local one."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme != "file"


def local_path(path: str) -> str:
    """Return the absolute path of a local path or a URL such as `file:///lake` or `file:/lake`.

    A percent sign in a URL stands for itself, as in Spark's paths: there, `file:///a%20b` is the directory `a%20b`.
    """
    if path.startswith("file:/"):
        path = path.removeprefix("file:").removeprefix("//")
    return str(Path(path).absolute())


@contextmanager
def disk_errors(label: str, path: Path) -> Iterator[None]:
    """Raise TemporaryError in place of OSError: often, such an error names neither the file nor the sink. `label` is
    the name of the sink or source, and `path` is what the block writes.
    """
    try:
        yield
    except OSError as error:
        remedy = DISK_REMEDIES.get(error.errno or 0, "check the file system")
        place = error.filename if isinstance(error.filename, str) else path
        raise TemporaryError(f"{label}: {error.strerror or error}, at {place}: {remedy}") from error


def create_directory(directory: Path) -> None:
    """Create a directory and its missing parents, and make all these new names durable. Do nothing if it exists."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_directory(each.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
