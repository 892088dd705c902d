"""Schema registries. An Avro value contains the id of the schema with which it was written. A registry has the schema.

A registry is a dictionary or a file with schemas, or a service with the HTTP interface of Confluent's Schema Registry.
"""

import base64
import json
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pyspark_tidelog.errors import OptionError, counted
from pyspark_tidelog.http_requests import Limits, RequestFailed, send

ANSWER_BYTES_MAX = 16 << 20
"""Upper bound on the size of an answer of a schema registry."""
TIMEOUT_S = 30.0
ATTEMPTS = 3
FIRST_PAUSE_S = 0.5
PAUSE_MAX_S = 10.0
"""Pauses between attempts grow from FIRST_PAUSE_S to PAUSE_MAX_S, in seconds."""
MISSING_S = 5.0
"""If the registry does not have an id, the id is not requested again for this number of seconds."""
MISSING_IDS_MAX = 10_000
"""Upper bound on the ids that are remembered because the registry does not have them. The ids come from values of
records, so damaged records may contain any number of unknown ids."""
NOT_FOUND = 404
UNAUTHORIZED = (401, 403)


class RegistryError(RuntimeError):
    """A request to the schema registry failed, or its answer cannot be read. A later request may succeed."""


class UnusableSchema(ValueError):
    """A registered schema cannot be used, for example because it is not Avro. A later request for the same id will fail
    too, because an id always has the same schema.
    """


class RegisteredSchema(NamedTuple):
    id: int
    schema: Any
    """The schema as parsed JSON."""


class Registry(Protocol):
    """Finds schemas. It is pickled with the query."""

    def by_id(self, schema_id: int) -> Any | None:
        """Return the schema as parsed JSON, or None if there is no schema with this id.

        Raises UnusableSchema and RegistryError.
        """
        ...

    def latest(self, subject: str | None) -> RegisteredSchema:
        """Return the latest schema of a subject, or the only schema of a dictionary. Raises UnusableSchema and
        RegistryError. Raises OptionError if a service gets no subject or does not have the subject, and if a dictionary
        gets a subject or does not have exactly one schema.
        """
        ...


class StaticRegistry:
    """Schemas that do not change: a dictionary from ids to schemas."""

    def __init__(self, schemas: Mapping[Any, Any]) -> None:
        """Keys are numbers or texts of digits. Schemas are texts or parsed JSON. Raises OptionError for other keys, and
        if `parsed_schema` refuses a text.
        """
        self._schemas: dict[int, Any] = {}
        for key, schema in schemas.items():
            if not str(key).isdecimal():
                raise OptionError(f"registry: the key {key!r} is not the id of a schema")
            self._schemas[int(key)] = parsed_schema(schema)

    def by_id(self, schema_id: int) -> Any | None:
        return self._schemas.get(schema_id)

    def latest(self, subject: str | None) -> RegisteredSchema:
        if subject is not None:
            raise OptionError(
                "registry: a file or dictionary has no subjects: leave out subject, and set schema_id if there are"
                " several schemas"
            )
        if len(self._schemas) != 1:
            raise OptionError(
                f"registry: there are {len(self._schemas)} schemas: set schema or schema_id to choose the one to read"
            )
        return RegisteredSchema(*next(iter(self._schemas.items())))


class HttpRegistry:
    """A schema registry with Confluent's HTTP interface. The schema of an id is cached, because it never changes."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError("registry: the URL must begin with http:// or https:// and name a host")
        if parts.query or parts.fragment:  # they may contain a secret, so the message does not show them
            raise OptionError("registry: the URL must end with the path: remove the part after ? or #")
        self._authorization = ""
        if parts.username is not None:
            user, password = urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
            self._authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        address = parts.netloc.rpartition("@")[2]
        self._url = urllib.parse.urlunsplit((parts.scheme, address, parts.path.rstrip("/"), "", ""))
        self._schemas: dict[int, Any] = {}
        self._missing_until: dict[int, float] = {}
        """For each id that was not found, the time on the monotonic clock at which it may be requested again."""

    def by_id(self, schema_id: int) -> Any | None:
        if schema_id in self._schemas:
            return self._schemas[schema_id]
        if time.monotonic() < self._missing_until.get(schema_id, float("-inf")):
            return None
        answer = self._get(f"/schemas/ids/{schema_id}")
        if answer is None:
            if len(self._missing_until) >= MISSING_IDS_MAX:
                self._missing_until.clear()
            self._missing_until[schema_id] = time.monotonic() + MISSING_S
            return None
        self._schemas[schema_id] = self._schema(answer)
        return self._schemas[schema_id]

    def latest(self, subject: str | None) -> RegisteredSchema:
        if subject is None:
            raise OptionError("registry: set schema, schema_id or subject to choose the schema to read")
        answer = self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        if answer is None:
            raise OptionError(f"registry {self._url}: there is no subject {subject!r}")
        if not isinstance(answer.get("id"), int):
            raise RegistryError(f"registry {self._url}: the answer for subject {subject!r} has no id")
        return RegisteredSchema(answer["id"], self._schema(answer))

    def _schema(self, answer: Mapping[str, Any]) -> Any:
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise UnusableSchema(f"registry {self._url}: the schema is {kind}, not Avro")
        if answer.get("references"):
            raise UnusableSchema(f"registry {self._url}: schemas with references to others are not supported")
        if not isinstance(answer.get("schema"), str):
            raise RegistryError(f"registry {self._url}: the answer has no schema")
        try:
            return parsed_schema(answer["schema"])
        except OptionError as error:
            raise UnusableSchema(f"registry {self._url}: {error}") from None

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the answer as parsed JSON, or None if the registry answers that it has nothing at `path`."""
        limits = Limits(ATTEMPTS, TIMEOUT_S, ANSWER_BYTES_MAX, FIRST_PAUSE_S, PAUSE_MAX_S)
        headers = {"Accept": "application/json"}
        if self._authorization:
            headers["Authorization"] = self._authorization
        try:
            text = send(self._url + path, limits, headers=headers, any_host=True)
        except RequestFailed as error:
            if error.status == NOT_FOUND:
                return None
            if error.status in UNAUTHORIZED:
                raise RegistryError(
                    f"registry {self._url}: access is denied ({error.status}): put user and password into the URL"
                ) from None
            raise RegistryError(
                f"registry {self._url}: the request failed after {counted(error.attempts, 'attempt')}: {error}"
            ) from None
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise RegistryError(f"registry {self._url}: the answer to {path} is not a JSON object")
        return answer


def registry_of(source: "str | Path | Mapping[int, Any] | Registry") -> Registry:
    """Return the registry for a URL, a file, a dictionary, or a registry object. Raises OptionError."""
    if isinstance(source, Mapping):
        return StaticRegistry(source)
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        return HttpRegistry(source)
    if not isinstance(source, (str, Path)):
        return source
    try:
        schemas = json.loads(Path(source).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"registry: the file {source} cannot be read as JSON: {error}") from None
    if not isinstance(schemas, dict):
        raise OptionError(f"registry: the file {source} must have a JSON object from ids to schemas")
    return StaticRegistry(schemas)


def parsed_schema(schema: Any) -> Any:
    """Return a schema as parsed JSON. A text that does not begin like JSON is returned unchanged, because the name of a
    primitive type, like `string`, is a schema too. Raises OptionError if a text begins like JSON but cannot be parsed.
    """
    if isinstance(schema, Path):
        try:
            schema = schema.read_text("utf-8")
        except OSError as error:
            raise OptionError(f"the Avro schema cannot be read: {error}") from None
    if not isinstance(schema, str):
        return schema
    if not schema.lstrip().startswith(("{", "[", '"')):
        return schema
    try:
        return json.loads(schema)
    except ValueError as error:
        raise OptionError(f"the Avro schema is not JSON: {error}") from None
