"""Errors of object stores as one line with the URL, the cause and the remedy, but without secrets."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tidelog.pipelines.declarations import PipelineError, TemporaryError

Pairs = Iterable[tuple[str, str]]

SECRET_NAME = re.compile(
    r"secret|token|password|credential|(?:access|account|api|private|shared).?key|sas|passphrase|jaas", re.IGNORECASE
)
"""Names of options whose values are never shown."""
HIDDEN = "***"
DETAIL_MAX = 400
"""Maximum length, in characters, of a library's error text in an error message of Tidelog."""
NO_CREDENTIALS = (
    "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of the driver and of"
    " the executors, or give the machines an IAM role"
)
DENIED = (
    "the object store refuses the credentials, or they do not permit this request: check AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY in the environment, and the permissions to read, write, list and delete"
)
SETTINGS = "AWS_ENDPOINT_URL and AWS_REGION; for iceberg(), s3.endpoint and s3.region"
NO_BUCKET = f"there is no such bucket: create it, or check the URL, the endpoint and the region ({SETTINGS})"
PLAIN_HTTP = "an endpoint with http:// needs the option AWS_ALLOW_HTTP=true: set it, or use an https:// endpoint"
WRONG_REGION = f"the bucket is in another region: set the region ({SETTINGS})"
NO_ANSWER = f"the object store does not answer: check the endpoint ({SETTINGS}), the network and the server"
CAUSES = (
    (r"169\.254\.169\.254|no providers in chain|CredentialsNotLoaded", NO_CREDENTIALS),
    (r"NoSuchBucket|NO_SUCH_BUCKET", NO_BUCKET),
    (
        r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|AccessDenied|ACCESS_DENIED|INVALID_ACCESS_KEY|"
        r"SIGNATURE_DOES_NOT_MATCH|\b40[13] (?:Forbidden|Unauthorized)|HTTP status 40[13]\b|lacked the necessary priv",
        DENIED,
    ),
    (r"BadScheme|HTTP error: builder error|URL scheme is not allowed", PLAIN_HTTP),
    (r"PermanentRedirect|AuthorizationHeaderMalformed|incorrectly configured region|\b301 Moved", WRONG_REGION),
)
"""What the libraries' texts mean. The first pattern that matches the text decides. All these
causes are permanent: the same operation would fail again."""
TRANSIENT = re.compile(
    r"error sending request|Error performing|Generic (?:S3|GCS)|NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|"
    r"INTERNAL_FAILURE|timed? ?out|curlCode|"
    # "connection" as a word in a sentence or in an error's name, but not in a path, a column's name or an option.
    r"(?<![\w./-])connection(?![\w./=-]*[\w/=-])|Connection\w*Error|ConnectionPool\(|could(?: not|n't) connect|"
    r"(?:http(?:/[\d.]+)?|status|code|error)\W{1,3}5\d\d\b|\(5\d\d\)|"
    r"\b5\d\d (?:internal server error|bad gateway|service unavailable|gateway time-?out|slow ?down)",
    re.IGNORECASE,
)
"""Texts of errors after which another attempt may succeed. A number from 500 to 599 may also be a size or a part of
a path, so it is an HTTP status only in a context such as `status 503` or `502 Bad Gateway`."""
MISSING_OBJECT = re.compile(r"Error performing (?:GET|HEAD) .*?\b404 Not Found|NoSuchKey|RESOURCE_NOT_FOUND", re.DOTALL)
"""Texts of errors that say that an object does not exist. These errors are not problems of the store itself."""


@contextmanager
def store_errors(label: str, url: str, options: Pairs, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise PipelineError or TemporaryError in place of one of `errors`, if it is an error of the object store.

    The new error's text begins with `label`, which names the sink or source that uses the store, for example
    `parquet s3://bucket/sales`. `options` are the options of the store; the text does not show their secrets.
    Errors of other kinds, and errors that are not about the object store, are not replaced.
    """
    try:
        yield
    except PipelineError:
        raise
    except errors as error:
        found = store_error(label, url, error, options)
        if found is None:
            raise
        raise found from error


def store_error(label: str, url: str, error: BaseException, options: Pairs) -> PipelineError | None:
    """Return the error of a library as an error for people, or None if it is not about the object store itself."""
    raw = str(error)
    where = label if url in label else f"{label} ({without_secrets(url, options)})"
    detail = without_secrets(one_line(raw), options)
    for pattern, remedy in CAUSES:
        if re.search(pattern, raw):
            return PipelineError(f"{where}: {remedy} ({detail})")
    if TRANSIENT.search(raw) and not MISSING_OBJECT.search(raw):
        return TemporaryError(f"{where}: {NO_ANSWER} ({detail})")
    return None


def one_line(text: str) -> str:
    """Return the error of a library without colours, details for its developers, XML and ends of lines."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).partition("Debug source")[0]
    code = re.search(r"<Code>(\w+)</Code>", text)
    text = re.sub(r"<\?xml.*|<Error>.*", code[1] if code else "", text, flags=re.DOTALL)
    text = re.sub(r"[?&][\w.-]*=[^\s&]*", "", text)  # query parameters: ids of uploads, and signatures
    text = " ".join(text.replace("↳", " ").split())
    return text if len(text) <= DETAIL_MAX else f"{text[:DETAIL_MAX]} ..."


def without_secrets(text: str, options: Pairs) -> str:
    """Return the text without the values of secret options, and without passwords in URLs."""
    for name, value in options:
        if len(value) >= 4 and SECRET_NAME.search(name):
            text = text.replace(value, HIDDEN)
    return re.sub(r"//[^/\s@]+@", f"//{HIDDEN}@", text)


def refuse_credentials(kind: str, url: str) -> None:
    """Raise PipelineError if a URL contains a password, because every message with the URL would show the password."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if ":" in user:  # abfss://container@account has no password
        raise PipelineError(
            f"{kind} {parts.scheme}://{HIDDEN}@{host}{parts.path}: the URL contains a password: remove it, and set"
            " credentials in environment variables, for example AWS_ACCESS_KEY_ID"
        )
