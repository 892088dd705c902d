"""Which options there are, how a text becomes a value, and why an option is refused.

A `kafka.*` option is named as the setting of Kafka's own clients, after the prefix. One that has no meaning here is
refused, never ignored: a job must not believe in a setting that nobody heeds.
"""

import difflib
from collections.abc import Mapping
from typing import NoReturn

from pyspark_tidelog.errors import OptionError
from tidelog.client.blocking import ClientConfig, parse_bootstrap
from tidelog.client.operations import Backoff

PREFIX = "kafka."

CLIENT = (
    "bootstrap.servers",
    "client.id",
    "default.api.timeout.ms",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
)

REFUSED = {
    "auto.offset.reset": "say where to begin with startingOffsets",
    "enable.auto.commit": "offsets are kept in the query's checkpoint, none are committed to a group",
    "enable.idempotence": "the sink is at least once, without an idempotent producer",
    "group.id": "no consumer group is used, offsets are kept in the query's checkpoint",
    "interceptor.classes": "there is no place for interceptors written in Java",
    "key.deserializer": "keys are binary, cast the column in the DataFrame",
    "key.serializer": "keys are written as the column's bytes, cast it in the DataFrame",
    "linger.ms": "nothing lingers, a batch is sent when it is full or the task has no more rows",
    "partitioner.class": "records go where Java's default partitioner puts them, or where a partition column says",
    "transactional.id": "the sink is at least once, it opens no transactions",
    "value.deserializer": "values are binary, cast the column in the DataFrame",
    "value.serializer": "values are written as the column's bytes, cast it in the DataFrame",
}
SECURITY = ("sasl.", "ssl.")


class Options:
    """Options as they were given; names are compared without regard to case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value.strip() for name, value in given.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default)

    def required(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise OptionError(f"option {name} is required")
        return value

    def integer(self, name: str, default: int, *, at_least: int = 0, at_most: int = (1 << 31) - 1) -> int:
        text = self.text(name)
        if name not in self:
            return default
        value = int(text) if text.removeprefix("-").isdecimal() else None
        if value is None or not at_least <= value <= at_most:
            raise OptionError(f"option {name} is {text!r}: it takes a whole number from {at_least} to {at_most}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.choice(name, {"true": 1, "false": 0}, str(default).lower()))

    def choice(self, name: str, choices: Mapping[str, int], default: str) -> int:
        text = self.text(name, default)
        if text.lower() not in choices:
            raise OptionError(f"option {name} is {text!r}: it takes {' or '.join(choices)}")
        return choices[text.lower()]

    def at_most_one(self, *names: str) -> str | None:
        """The one of these that is given. Raises OptionError when several are."""
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise OptionError(f"options {' and '.join(given)} exclude each other: give one")
        return given[0] if given else None

    def refuse_others(self, known: tuple[str, ...], unsupported: Mapping[str, str]) -> None:
        """Raises OptionError for the first option that is not among `known`, with the reason or the nearest name."""
        names = {name.lower(): name for name in known}
        reasons = {name.lower(): (name, reason) for name, reason in unsupported.items()}
        reasons |= {PREFIX + name: (PREFIX + name, reason) for name, reason in REFUSED.items()}
        for name in self._given:
            if name in names:
                continue
            if name in reasons:
                raise OptionError("option {} is not taken by format tidelog: {}".format(*reasons[name]))
            if name.removeprefix(PREFIX).startswith(SECURITY):
                _refuse_security(name)
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {names[near[0]]}?" if near else ""
            raise OptionError(f"option {name} is not known to format tidelog{hint}")


def bootstrap(options: Options) -> str:
    """The servers, checked. Raises OptionError."""
    servers = options.required(PREFIX + "bootstrap.servers")
    try:
        parse_bootstrap(servers)
    except ValueError as error:
        raise OptionError(f"option {PREFIX}bootstrap.servers: {error}") from None
    return servers


def client_config(options: Options, default_client_id: str) -> ClientConfig:
    defaults = ClientConfig()
    if options.text(PREFIX + "security.protocol", "PLAINTEXT").upper() != "PLAINTEXT":
        _refuse_security(PREFIX + "security.protocol")

    def ms(name: str, default: int) -> int:
        return options.integer(PREFIX + name, default, at_least=1)

    return ClientConfig(
        client_id=options.text(PREFIX + "client.id", default_client_id),
        request_timeout_ms=ms("request.timeout.ms", defaults.request_timeout_ms),
        default_api_timeout_ms=ms("default.api.timeout.ms", defaults.default_api_timeout_ms),
        socket_connection_setup_timeout_ms=ms(
            "socket.connection.setup.timeout.ms", defaults.socket_connection_setup_timeout_ms
        ),
        backoff=Backoff(
            ms("retry.backoff.ms", defaults.backoff.first_ms), ms("retry.backoff.max.ms", defaults.backoff.max_ms)
        ),
    )


def _refuse_security(name: str) -> NoReturn:
    raise OptionError(f"option {name} is not taken by format tidelog: it speaks plaintext only, without TLS and SASL")
