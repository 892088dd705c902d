"""A bucket on a server of the S3 protocol, which runs in a process of its own (see `object_server`)."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

KEY = "tidelog-test-key"
"""The access key that the server accepts."""
SECRET = "tidelog-test-secret"  # the tests look for this text in messages
REGION = "us-east-1"
PROGRAM = Path(__file__).parent / "object_server.py"


@dataclass(frozen=True)
class Bucket:
    """A new, empty bucket."""

    server: "Server"
    name: str

    def url(self, path: str) -> str:
        return f"s3://{self.name}/{path}"

    @property
    def objects(self) -> Any:
        """The bucket as a file system of Arrow, which knows nothing of the sinks."""
        from pyarrow.fs import S3FileSystem, SubTreeFileSystem

        system = S3FileSystem(
            access_key=KEY, secret_key=SECRET, region=REGION, endpoint_override=self.server.endpoint, scheme="http"
        )
        return SubTreeFileSystem(self.name, system)

    def names(self, path: str = "") -> list[str]:
        """Return the names of all objects below `path`, in order."""
        from pyarrow.fs import FileSelector, FileType

        found = self.objects.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        return sorted(each.path for each in found if each.type == FileType.File)


@dataclass(frozen=True)
class Server:
    endpoint: str
    """Its URL."""
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def options(self) -> dict[str, str]:
        """Where the server is, as options of object stores without credentials."""
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": REGION, "AWS_ALLOW_HTTP": "true"}

    def bucket(self) -> Bucket:
        name = f"bucket-{next(self._numbers)}"
        self._control(f"buckets/{name}")
        return Bucket(self, name)

    def requests(self) -> list[dict[str, str]]:
        """Return the requests since the last call: method, path, query, if_none_match, copy_source."""
        found: list[dict[str, str]] = self._control("requests")
        return found

    @contextmanager
    def fault(self, kind: str, method: str, path: str, times: int = 1_000_000) -> Iterator[None]:
        """Plan a fault for the next `times` requests with `method` in whose path the regular expression `path` occurs.

        `kind` is `unavailable` (503) or `denied` (403), `lost answer` (the request succeeds, and the connection ends
        without an answer) or `unconditional` (the server ignores `If-None-Match`).
        """
        self._control("faults", [{"kind": kind, "method": method, "path": path, "times": times}])
        try:
            yield
        finally:
            self._control("faults", [])

    def _control(self, command: str, body: Any = None) -> Any:
        request = urllib.request.Request(f"{self.endpoint}/-/{command}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


@contextmanager
def object_server() -> Iterator[Server]:
    """Run a server on a free port of this machine."""
    process = subprocess.Popen([sys.executable, PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port, "the server of the S3 protocol did not start"
        yield Server(f"http://127.0.0.1:{port}")
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
