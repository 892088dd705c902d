"""Access to object stores through obstore. It accepts deltalake's options, because both use the same Rust library.

Unlike Arrow's file systems, obstore has conditional writes. The sinks need them, so that only one driver can decide
which files belong to a micro-batch (see `bucket`).
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tidelog.pipelines.declarations import PipelineError, interval_ms
from tidelog.pipelines.sinks.object_errors import one_line, store_errors, without_secrets

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "s3a", "gs")
"""URL schemes of object stores that answer a request to copy an object only when the copy is complete."""
LIMITS = {"connect_timeout": "5s", "timeout": "30s", "max_retries": "10", "retry_timeout": "60s"}
"""Defaults of the options that limit the time until a request fails. An attempt takes up to `timeout`, and no attempt
begins after `retry_timeout`."""
CLIENT_OPTIONS = re.compile(
    "allow_http|allow_invalid_certificates|default_content_type|http1_only|http2_.*|pool_.*|proxy_.*|"
    "randomize_addresses|timeout|connect_timeout|read_timeout|user_agent"
)
"""Options of the HTTP client. obstore takes them separately from those of the store."""
RETRY_OPTIONS = ("max_retries", "retry_timeout")


def with_limits(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of an object store. Options of LIMITS that are not set get their values from LIMITS."""
    return LIMITS | {
        _short_name(name) if _short_name(name) in LIMITS else name: value for name, value in options.items()
    }


@dataclass(frozen=True)
class Objects:
    """The objects below one URL. Spark pickles this value for the executors, which open the store themselves."""

    url: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    """Options of the object store, as pairs. They may contain secrets."""
    label: str
    """The sink's name in error messages, for example `parquet s3://bucket/sales`."""

    def open(self) -> "ObjectStore":
        """Return obstore's store. No request is sent yet. Raises PipelineError if an option is wrong."""
        from obstore.store import from_url

        config, client, retry = {}, {}, {}
        for name, value in with_limits(dict(self.options)).items():
            if _short_name(name) in RETRY_OPTIONS:
                retry[_short_name(name)] = value
            elif CLIENT_OPTIONS.fullmatch(_short_name(name)):
                client[_short_name(name)] = value
            else:
                config[name] = value
        try:
            store: ObjectStore = from_url(
                self.url,
                config=config,  # type: ignore[call-overload]  # the names are the user's
                client_options=client,
                retry_config={
                    "max_retries": int(retry["max_retries"]),
                    "retry_timeout": timedelta(seconds=_seconds(retry["retry_timeout"])),
                },
            )
        except Exception as error:
            text = without_secrets(one_line(str(error)), self.options)
            raise PipelineError(f"{self.label}: the options of the object store are wrong: {text}") from error
        return store

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise PipelineError or TemporaryError in place of errors of the object store."""
        from obstore.exceptions import BaseError

        with store_errors(self.label, self.url, self.options, (BaseError, OSError)):
            yield

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        """Write a new object. It appears when the block ends without an error, and then it is complete."""
        import obstore

        with self.errors(), obstore.open_writer(self.open(), path) as stream:
            yield CountedStream(stream)

    def remove(self, path: str) -> None:
        import obstore

        obstore.delete(self.open(), path)


class CountedStream:
    """A stream of obstore that also has `tell`, because writers of files need it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._size = 0
        self.closed = False

    def write(self, content: Any) -> int:
        written: int = self._stream.write(content)
        self._size += written
        return written

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._size

    def flush(self) -> None:
        """Do nothing: an object exists only when it is complete."""

    def close(self) -> None:
        """Do nothing: the owner of the stream completes the object."""


def _short_name(name: str) -> str:
    """Return the name of an option in lower case and without its prefix: `AWS_ALLOW_HTTP` becomes `allow_http`."""
    return re.sub(r"^(?:aws|google)_", "", name.lower())


def _seconds(text: str) -> float:
    milliseconds = interval_ms(text)
    if milliseconds is None:
        raise ValueError(f"retry_timeout {text!r} is not an interval such as 60s")
    return milliseconds / 1000
