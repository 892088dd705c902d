"""The `FileTarget` for a part of an object store's bucket.

An object store cannot rename, but it can do what the steps in the module `targets` need: create the manifest only if
there is none (a conditional write, `If-None-Match: *`), and copy an object within the store. The copy appears only when
its content is complete. A staged file never changes, so a repeated copy changes nothing for a reader. The staged files
are removed after all of them have been copied to their final names.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.sinks.object_stores import Objects
from tidelog.pipelines.sinks.targets import CONTROL, Entry, FileTarget

if TYPE_CHECKING:
    from obstore.store import ObjectStore

COPIES_MAX = 16
"""Upper bound on the copies that the driver requests at the same time."""
OBJECT_BYTES_MAX = 4 << 30
"""Size at which a task begins another file. S3 copies objects of up to 5 GiB with one request."""
PROBE = f"{CONTROL}/conditional-writes"
"""The object by which the sink finds out whether the store refuses to write an object that exists."""


@dataclass(frozen=True)
class BucketTarget(FileTarget):
    """The objects below a URL to which one query appends files."""

    options: tuple[tuple[str, str], ...] = field(repr=False)
    """Options of the object store, as pairs. They may contain secrets."""

    @property
    def store(self) -> Objects:
        return Objects(self.location, self.options, self.sink)

    def check(self) -> None:
        """Raise PipelineError or TemporaryError if the bucket cannot be used.

        The store must obey the condition of a conditional write. Otherwise, a second driver could overwrite the
        manifest of a micro-batch.
        """
        with self.store.errors():
            store = self.store.open()
            is_exact = not create(store, PROBE, b"Tidelog may write this object only once.\n")
            if not is_exact and create(store, PROBE, b"This text shows that the condition was ignored.\n"):
                raise PipelineError(
                    f"{self.sink}: the object store ignores the condition of a write (If-None-Match: *), so this sink"
                    " cannot be exactly once there: use a newer version of the store, or another sink"
                )

    def _read_manifest(self, batch_id: int) -> str | None:
        import obstore

        with self.store.errors():
            try:
                return bytes(obstore.get(self.store.open(), self._manifest(batch_id)).bytes()).decode()
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def _later_manifest(self, batch_id: int) -> str | None:
        import obstore

        newest = self._manifest(batch_id)
        prefix = newest.rpartition("/")[0] + "/"
        with self.store.errors():
            # The store lists only names that sort after the name of this manifest. Normally there is none.
            for chunk in obstore.list(self.store.open(), prefix, offset=newest):
                names = [str(each["path"]).removeprefix(prefix) for each in chunk]
                if later := [name for name in names if name.endswith(".json")]:
                    return max(later)
        return None

    def _decide(self, batch_id: int, text: str) -> None:
        with self.store.errors():
            create(self.store.open(), self._manifest(batch_id), text.encode())

    def _publish(self, files: list[Entry]) -> str | None:
        with self.store.errors():
            store = self.store.open()
            with ThreadPoolExecutor(COPIES_MAX) as copies:
                results = list(copies.map(publisher(store), files))
        return next((name for name in results if name is not None), None)

    def _remove_attempts(self, batch_id: int) -> None:
        import obstore

        staged = f"{CONTROL}/staged/"
        with self.store.errors():
            store = self.store.open()
            for chunk in obstore.list(store, staged):
                names = [str(each["path"]) for each in chunk]
                batches = [self._attempt_batch(name.removeprefix(staged)) for name in names]
                old = [n for n, batch in zip(names, batches, strict=True) if batch is not None and batch <= batch_id]
                if old:
                    obstore.delete(store, old)

    def _remove_manifest(self, batch_id: int) -> None:
        import obstore

        with self.store.errors(), suppress(FileNotFoundError):
            obstore.delete(self.store.open(), self._manifest(batch_id))


def create(store: "ObjectStore", path: str, content: bytes) -> bool:
    """Write an object unless it exists. Return whether this call has written it.

    If the answer to the first attempt is lost, obstore repeats the request. The result is then False, although this
    call has written the object.
    """
    import obstore
    from obstore.exceptions import AlreadyExistsError

    try:
        obstore.put(store, path, content, mode="create")
    except AlreadyExistsError:
        return False
    return True


def exists(store: "ObjectStore", path: str) -> bool:
    import obstore

    try:
        obstore.head(store, path)
    except FileNotFoundError:
        return False
    return True


def publisher(store: "ObjectStore") -> Callable[[Entry], str | None]:
    """Return a function that copies one staged file to its final name, unless an object with this name exists. The
    function returns the final name if the staged file is lost, and None otherwise.
    """
    import obstore

    def publish(file: Entry) -> str | None:
        if exists(store, file["name"]):
            return None
        try:
            obstore.copy(store, file["staged"], file["name"])
        except FileNotFoundError:
            # Another process may have copied it, and removed the staged file, in the meantime.
            return None if exists(store, file["name"]) else file["name"]
        return None

    return publish
