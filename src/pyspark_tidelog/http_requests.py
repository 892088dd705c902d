"""Sends requests over HTTP with limits, and repeats them after failures that may be temporary.

The clients of schema registries and the pipelines' `http()` use this module. Requests are sent by drivers and by tasks
on executors.
"""

import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, InvalidURL
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

REPEATED_STATUS = frozenset({408, 429})
"""Statuses from 400 to 499 after which a request is repeated. After any other status from 400 to 499, a repeated
request would get the same status."""
NEVER_REPEATED_STATUS = frozenset({501, 505})
"""Statuses of 500 or more which mean that the server does not support the request at all. After these statuses, the
request is not repeated."""
REDIRECT_STATUS = frozenset({301, 302, 303, 307, 308})
ANSWER_SHOWN_MAX = 200
"""Upper bound on the bytes of an answer that are quoted in the message of a failure."""
RETRY_AFTER_MAX_S = 60.0
"""Longest pause that the header `Retry-After` of an answer causes, in seconds."""
READ_BYTES = 64 << 10
"""Upper bound on the bytes that one step reads from an answer."""
SECRET_CHARS_MIN = 4
"""Minimum length of a secret that is removed from messages. Shorter secrets may be parts of unrelated words."""
ORDINARY_HEADERS = frozenset({"accept", "content-type", "idempotency-key", "user-agent"})
"""Headers, in lower case, whose values are no secrets."""


class Limits(NamedTuple):
    """How many times a request is sent, how long each attempt may take, and how large the answer may be."""

    attempts: int
    timeout_s: float
    """Longest wait for the connection, and for each part of the answer. The same limit applies to the whole body, from
    the headers on, but it is checked only after each part. So the wait for a body is at most about twice this limit."""
    answer_bytes_max: int
    first_pause_s: float
    """Upper bound on the pause after the first failure. Each further failure doubles it, up to `pause_max_s`."""
    pause_max_s: float


class RequestFailed(Exception):
    """A request failed in its last attempt. The message has no URL and no secrets."""

    def __init__(self, message: str, status: int | None, attempts: int, may_be_temporary: bool = False) -> None:
        """`status` is the answer's status; None if there was no complete answer. `may_be_temporary` says whether a
        later attempt may succeed."""
        super().__init__(message)
        self.status = status
        self.attempts = attempts
        self.may_be_temporary = may_be_temporary


class _RedirectsOfReads(urllib.request.HTTPRedirectHandler):
    """Follows redirects of GET requests: without `any_host`, only to the same scheme, host and port. Any other redirect
    becomes an HTTPError.

    Without this class, urllib would turn a redirected POST into a GET without a body, so that rows would be lost
    without an error. It would also send the headers, which may contain secrets, to any host.
    """

    def __init__(self, *, any_host: bool) -> None:
        """With `any_host`, redirects to other hosts are followed without the headers of the request."""
        self._any_host = any_host

    def redirect_request(self, request: urllib.request.Request, *answer: Any) -> urllib.request.Request | None:
        target = urlsplit(answer[-1])
        is_same_host = target[:2] == urlsplit(request.full_url)[:2]
        is_followed = is_same_host or (self._any_host and target.scheme in {"http", "https"})
        if request.get_method() != "GET" or not is_followed:
            return None
        redirected = super().redirect_request(request, *answer)
        if redirected is not None and not is_same_host:
            redirected.headers.clear()
        return redirected


OPENER = urllib.request.build_opener(_RedirectsOfReads(any_host=False))
OPENER_FOR_ANY_HOST = urllib.request.build_opener(_RedirectsOfReads(any_host=True))


def send(
    url: str,
    limits: Limits,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str],
    any_host: bool = False,
    also_repeated: Iterable[int] = (),
) -> bytes:
    """Send one request, repeat it after failures that may be temporary, and return the answer.

    `url` begins with http:// or https://. With `any_host`, redirects to other hosts are followed without the headers.
    `also_repeated` are further statuses after which the request is repeated. Raises RequestFailed.
    """
    opener = OPENER_FOR_ANY_HOST if any_host else OPENER
    for attempt in range(1, limits.attempts + 1):
        asked_pause_s = 0.0
        status, may_be_temporary = None, True
        try:
            request = urllib.request.Request(url, body, dict(headers), method=method)  # noqa: S310  # see above
            with opener.open(request, timeout=limits.timeout_s) as answer:
                return _content(answer, limits)
        except urllib.error.HTTPError as error:
            status = error.code
            may_be_temporary = is_repeated(status) or status in also_repeated
            asked_pause_s = retry_after_s(error.headers.get("Retry-After", ""), datetime.now(UTC))
            failure = _failure_of(error)
        except _TooLong as error:
            failure, may_be_temporary = str(error), False
        except (InvalidURL, UnicodeError) as error:  # their texts contain the URL or a header
            failure, may_be_temporary = f"the URL or a header is not valid ({type(error).__name__})", False
        except (OSError, HTTPException) as error:  # HTTPException: the answer is incomplete or is not HTTP
            failure = str(getattr(error, "reason", error)).strip() or type(error).__name__
        except ValueError as error:
            failure, may_be_temporary = f"the URL or a header is not valid ({type(error).__name__})", False
        if attempt == limits.attempts or not may_be_temporary:
            raise RequestFailed(without_secrets(failure, url, headers), status, attempt, may_be_temporary) from None
        time.sleep(max(backoff_s(attempt, limits), asked_pause_s))
    raise AssertionError("a request is sent at least once")


def is_repeated(status: int) -> bool:
    """Return whether the same request may succeed after an answer with this status."""
    return status in REPEATED_STATUS or (status >= 500 and status not in NEVER_REPEATED_STATUS)


def backoff_s(attempt: int, limits: Limits) -> float:
    """Return the pause after the failed attempt with the number `attempt`, counted from 1. The pause is random, so that
    the tasks of a query, which fail at the same time, do not repeat their requests at the same time.
    """
    longest_s = min(limits.pause_max_s, limits.first_pause_s * 2.0 ** min(attempt - 1, 32))
    return random.uniform(longest_s / 2, longest_s)  # noqa: S311  # not a secret


def retry_after_s(text: str, now: datetime) -> float:
    """Return the pause in seconds that a header `Retry-After` asks for, at most RETRY_AFTER_MAX_S. The header contains
    a number of seconds or a date (RFC 9110, 10.2.3). Return 0 if the header is missing or malformed.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), RETRY_AFTER_MAX_S)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    if date.tzinfo is None:  # the zone `-0000`, which is UTC
        date = date.replace(tzinfo=UTC)
    return min(max((date - now).total_seconds(), 0.0), RETRY_AFTER_MAX_S)


def without_secrets(text: str, url: str, headers: Mapping[str, str]) -> str:
    """Return `text` with `***` in place of secrets: the values of headers, the values in the URL's query, and the URL's
    user and password. A server may repeat these secrets in its answer.
    """
    parts = urlsplit(url)
    values = [value for _, value in parse_qsl(parts.query)]
    values += [value for _, equals, value in (part.partition("=") for part in parts.query.split("&")) if equals]
    for each in parts.netloc.rpartition("@")[0].split(":"):
        values += [each, unquote(each)]
    for name, value in headers.items():
        if name.lower() not in ORDINARY_HEADERS:
            values += [value, *value.split()[1:]]  # the secret may follow a scheme, as in `Bearer SECRET`
    for value in sorted({each for each in values if len(each) >= SECRET_CHARS_MIN}, key=len, reverse=True):
        text = text.replace(value, "***")
    return text


class _TooLong(Exception):
    """An answer is longer than its limit."""


def _content(answer: Any, limits: Limits) -> bytes:
    """Read the body of an answer. A server that sends a byte now and then cannot prolong the reading without end: the
    time limit of the whole body is checked after each part, and the wait for each part has the same limit.
    """
    deadline_s = time.monotonic() + limits.timeout_s
    length = answer.headers.get("Content-Length", "")
    expected = int(length) if length.isdecimal() and not answer.chunked else None
    parts: list[bytes] = []
    received = 0
    while expected is None or received < expected:
        part = answer.read1(READ_BYTES)
        if not part:
            break
        parts.append(part)
        received += len(part)
        if received > limits.answer_bytes_max:
            raise _TooLong(f"the answer is longer than {limits.answer_bytes_max} bytes")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the answer was not complete within {limits.timeout_s:g} s")
    if expected is not None and received < expected:
        raise HTTPException(f"the answer ended after {received} of {expected} bytes")
    return b"".join(parts)


def _failure_of(error: urllib.error.HTTPError) -> str:
    with error:
        if error.code in REDIRECT_STATUS:
            return f"status {error.code} {error.reason}: give the URL to which the server redirects"
        shown = b""
        with suppress(OSError, HTTPException):  # the status is known without the rest of the answer
            shown = error.read(ANSWER_SHOWN_MAX)
    return f"status {error.code} {error.reason}: {shown.decode('utf-8', 'replace')}".rstrip(": ")
