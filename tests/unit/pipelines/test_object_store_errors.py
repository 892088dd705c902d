"""Errors of object stores: they come in bounded time, name the URL and the remedy, and show no secret."""

import json
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from sinks_harness.object_stores import KEY, SECRET, Bucket
from sinks_harness.rows import Rows
from sinks_harness.trials import opened
from tidelog.pipelines.declarations import PipelineError, SourceContext, TemporaryError
from tidelog.pipelines.failures import is_permanent
from tidelog.pipelines.sinks.delta import delta
from tidelog.pipelines.sinks.file import file
from tidelog.pipelines.sinks.iceberg import iceberg, load_catalog
from tidelog.pipelines.sinks.object_errors import DETAIL_MAX, one_line, store_error, without_secrets
from tidelog.pipelines.sinks.object_stores import LIMITS, with_limits
from tidelog.pipelines.sinks.parquet import parquet
from tidelog.pipelines.sources.delta import DeltaDataSource, DeltaLog
from tidelog.pipelines.sources.iceberg import IcebergHistory

FAST = {"timeout": "1s", "connect_timeout": "1s", "max_retries": "2", "retry_timeout": "2s"}
BOUND_S = 30.0
"""Upper bound on the time of an error with FAST, on a busy machine. pyiceberg tries three times, for 3 s each."""


class Case:
    """A bucket as the options of each sink name it."""

    def __init__(self, bucket: Bucket, directory: Path) -> None:
        self.name = bucket.name
        self.endpoint = bucket.server.endpoint
        self.directory = directory
        self.extra: dict[str, str] = {}

    @property
    def options(self) -> dict[str, str]:
        options = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
        return {**options, **FAST, **self.extra}

    @property
    def catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.directory}/catalog.db",
            "warehouse": f"s3://{self.name}/lake",
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
        }

    def error(self, kind: str) -> PipelineError:
        """Open a sink, write a micro-batch, and return the error."""
        url = f"s3://{self.name}/{kind}"
        sinks: dict[str, Callable[[], Any]] = {
            "delta": lambda: delta(url, storage_options=self.options),
            "parquet": lambda: parquet(url, storage_options=self.options),
            "file": lambda: file(url, storage_options=self.options),
            "iceberg": lambda: iceberg("lake.rows", catalog=self.catalog),
        }
        begin_s = time.monotonic()
        with pytest.raises(PipelineError) as caught:
            opened(sinks[kind](), None).write(Rows.numbers(0, 10), 0)  # type: ignore[arg-type]
        assert time.monotonic() - begin_s < BOUND_S
        text = str(caught.value)
        assert f"s3://{self.name}/" in text
        assert "\n" not in text
        assert "\x1b" not in text
        assert SECRET not in text
        return caught.value


KINDS = ["delta", "parquet", "file", "iceberg"]


@pytest.fixture
def case(bucket: Bucket, tmp_path: Path) -> Case:
    return Case(bucket, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_credentials(kind: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong-key")
    error = case.error(kind)
    assert "the object store refuses the credentials" in str(error)
    assert "AWS_SECRET_ACCESS_KEY in the environment" in str(error)
    assert "wrong-key" not in str(error)
    assert is_permanent(error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_bucket(kind: str, case: Case) -> None:
    case.name = "no-such-bucket"
    error = case.error(kind)
    assert "there is no such bucket: create it, or check the URL" in str(error)
    assert is_permanent(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answers", ["nobody listens", "no answer"])
def test_an_endpoint_that_does_not_answer(kind: str, answers: str, case: Case) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if answers == "no answer":
            silent.listen(50)
        case.endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        error = case.error(kind)
    assert "the object store does not answer: check the endpoint (AWS_ENDPOINT_URL" in str(error)
    assert not is_permanent(error)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_an_endpoint_without_tls_needs_an_option(kind: str, case: Case) -> None:
    case.extra = {"AWS_ALLOW_HTTP": "false"}
    error = case.error(kind)
    assert "needs the option AWS_ALLOW_HTTP=true" in str(error)
    assert is_permanent(error)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_no_credentials(kind: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library then asks the service that gives roles to machines of AWS."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        metadata = f"http://127.0.0.1:{nobody.getsockname()[1]}/169.254.169.254"
        case.extra = {"AWS_METADATA_ENDPOINT": metadata}
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata)
        error = case.error(kind)
    assert "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in str(error)


@pytest.mark.parametrize(
    ("kind", "method", "path"),
    [
        ("delta", "PUT", "_delta_log"),
        ("delta", "POST", "part-"),
        ("parquet", "PUT", r"_tidelog/\w+/\d+.json"),
        ("parquet", "PUT", "part-"),
        ("parquet", "PUT", r"parquet/\w+-"),
        ("parquet", "POST", "bucket-\\d+/?$"),
        ("iceberg", "POST", "part-"),
        ("iceberg", "POST", "metadata"),
    ],
)
def test_the_store_fails_later(kind: str, method: str, path: str, case: Case, bucket: Bucket) -> None:
    """At any step: the next attempt writes the micro-batch if the store was busy."""
    with bucket.server.fault("denied", method, path):
        assert is_permanent(case.error(kind))
    with bucket.server.fault("unavailable", method, path):
        assert isinstance(case.error(kind), TemporaryError)


def test_wrong_options(case: Case) -> None:
    case.extra = {"AWS_SECRET_ACCES_KEY": SECRET}
    assert "the options of the object store are wrong: Configuration key: 'aws_secret_acces_key'" in str(
        case.error("parquet")
    )
    case.extra = {"retry_timeout": "soon"}
    assert "retry_timeout 'soon' is not an interval" in str(case.error("parquet"))
    with pytest.raises(PipelineError, match="parquet /data: storage_options are for object stores"):
        parquet("/data", storage_options=case.options)
    for url in ("hdfs://host/p", "abfss://container@account/p", "http://host/p"):
        with pytest.raises(PipelineError, match=r"to URLs that begin with s3://, s3a://, gs://; for .*, use delta"):
            opened(parquet(url), None)
    with pytest.raises(PipelineError, match="parquet s3://bucket/p: storage_options are for a sink"):
        parquet("s3://bucket/p", storage_options=case.options).load(_no_context())
    with pytest.raises(PipelineError, match="file s3://bucket/p: storage_options are for a sink"):
        file("s3://bucket/p", storage_options=case.options).load(_no_context())


def test_a_url_with_a_password_is_refused_without_showing_it() -> None:
    for make in (delta, parquet, file):
        with pytest.raises(PipelineError, match=r"s3://\*\*\*@bucket/p: the URL contains a password") as caught:
            make(f"s3://{KEY}:{SECRET}@bucket/p")  # type: ignore[operator]
        assert SECRET not in str(caught.value)


def test_sources(case: Case, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also errors in the sources, which begin in processes of Spark, are one line about the store."""
    opened(delta(f"s3://{case.name}/t", storage_options=case.options), None).write(
        Rows.numbers(0, 10),  # type: ignore[arg-type]
        0,
    )
    opened(iceberg("lake.rows", catalog=case.catalog), None).write(Rows.numbers(0, 10), 0)  # type: ignore[arg-type]
    options = {"location": f"s3://{case.name}/t", "storageSecrets": json.dumps(case.options)}
    log = DeltaLog(options)
    [file, *_] = log.files(log.table().version())
    from tidelog.pipelines.sinks.arrow_types import arrow_schema

    schema = arrow_schema(DeltaDataSource(options).schema())
    with bucket.server.fault("unavailable", "GET", "part-"), pytest.raises(TemporaryError, match="does not answer"):
        list(log.read(file, schema))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong-key")
    history = IcebergHistory({"table": "lake.rows", "catalogSecrets": json.dumps(sorted(case.catalog.items()))})
    for user, read in (("delta", log.table), ("iceberg", history.table)):
        with pytest.raises(PipelineError, match=rf"^{user} .*refuses the credentials") as caught:
            read()  # type: ignore[operator]
        assert "\n" not in str(caught.value)


def test_secrets_are_hidden_in_texts() -> None:
    options = [("AWS_SECRET_ACCESS_KEY", "hunter2"), ("s3.session-token", "abcdef"), ("AWS_REGION", "eu-west-1")]
    text = "PUT https://me:pw@host/b/k?X-Amz-Signature=99&y=1 failed: hunter2 abcdef eu-west-1"
    assert without_secrets(one_line(text), options) == "PUT https://***@host/b/k failed: *** *** eu-west-1"
    for each in (delta("s3://b/t", storage_options=dict(options)), parquet("s3://b/t", storage_options=dict(options))):
        assert not re.search("hunter2|abcdef", repr(each) + each.describe())
    assert "hunter2" not in repr(file("s3://b/t", storage_options=dict(options)))
    with pytest.raises(PipelineError, match=r"the catalog cannot be loaded: ") as caught:
        load_catalog([("type", "sql"), ("uri", "nonsense://me:hunter2@host/db"), ("password", "hunter2")], "iceberg t")
    assert "hunter2" not in str(caught.value)
    long = store_error("parquet s3://b/t", "s3://b/t", OSError(f"Generic S3 error: {'x' * 1000}"), [])
    assert long is not None
    assert len(str(long)) < DETAIL_MAX + 300
    assert store_error("parquet s3://b/t", "s3://b/t", OSError("No space left on device"), []) is None


def test_requests_are_bounded_unless_the_user_says_otherwise() -> None:
    assert with_limits({"AWS_REGION": "eu-west-1"}) == {**LIMITS, "AWS_REGION": "eu-west-1"}
    assert with_limits({"TIMEOUT": "9s", "aws_connect_timeout": "1s"}) == {
        **LIMITS,
        "timeout": "9s",
        "connect_timeout": "1s",
    }
    assert dict(delta("s3://b/t").options) == LIMITS
    assert dict(delta("/t").options) == {}


def _no_context() -> SourceContext:
    return SourceContext(None, "", "trial", is_streaming=True)  # type: ignore[arg-type]
