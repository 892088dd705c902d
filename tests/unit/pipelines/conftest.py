"""A bucket for the tests of object stores, and databases for those of SQL."""

import os
from collections.abc import Iterator

import pytest

from sinks_harness.databases import TABLES, database
from sinks_harness.object_stores import KEY, SECRET, Bucket, Server, object_server


@pytest.fixture(scope="session")
def object_server_process() -> Iterator[Server]:
    pytest.importorskip("moto", reason="needs a server of the S3 protocol")
    with object_server() as running:
        yield running


@pytest.fixture
def bucket(object_server_process: Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket, whose credentials are in the environment and nowhere else."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    created = object_server_process.bucket()
    object_server_process.requests()
    return created


@pytest.fixture(scope="module", params=["sqlite", "mariadb", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with database(request.param, tmp_path_factory.mktemp("database")) as address:
        yield address


@pytest.fixture
def table() -> str:
    """A table of the test's own."""
    return next(TABLES)
