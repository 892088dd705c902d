"""Parse the texts of options, and decide which settings of Kafka's clients are accepted.

A `kafka.*` option is the prefix `kafka.` and the name of a setting of Kafka's own clients. Some settings change which
data is read or written, or guarantee something. Such a setting has the same effect here, or it is refused. Other
settings only tune a part of Kafka's client that does not exist here. They are accepted without effect, so that a job
need not change when it replaces the format kafka by tidelog; a warning in the log names such a setting. A name that no
client of Kafka knows is refused, because it is probably misspelt.
"""

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import NoReturn

from pyspark_tidelog.errors import OptionError
from tidelog.client.blocking import ClientConfig, parse_bootstrap
from tidelog.client.operations import Backoff

logger = logging.getLogger("tidelog.spark")

PREFIX = "kafka."

JAVA_WHITESPACE = "".join(map(chr, range(ord(" ") + 1)))
"""The characters that Java's `trim` removes. Spark uses `trim` for the values of options."""

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
"""Settings of Kafka's clients that have their effect in reads and in writes."""

REFUSED = {
    "auto.offset.reset": "set option startingOffsets, which says where to begin",
    "config.providers": "the values of options are used as they are written",
    "enable.auto.commit": "offsets are stored in the query's checkpoint, none are committed to a group",
    "interceptor.classes": "interceptors written in Java cannot run here",
    "key.deserializer": "keys are binary, cast the column in the DataFrame",
    "key.serializer": "keys are written as the column's bytes, cast the column in the DataFrame",
    "partitioner.class": "records go where Java's default partitioner puts them, or where a partition column says",
    "partitioner.ignore.keys": "records with a key go where Java's default partitioner puts them",
    "transaction.two.phase.commit.enable": "set option exactlyOnce, which works without the brokers' two-phase commit",
    "transactional.id": "set option exactlyOnce, which chooses the transactional ids",
    "value.deserializer": "values are binary, cast the column in the DataFrame",
    "value.serializer": "values are written as the column's bytes, cast the column in the DataFrame",
}
"""Settings of Kafka's clients that are refused, each with the reason or with the alternative."""
REFUSED_UNLESS: Mapping[str, str] = {
    PREFIX + "partitioner.ignore.keys": "false",
}
"""Settings of REFUSED that are accepted with one value, because this value requests the behaviour that the sink
always has."""
SECURITY = ("sasl.", "ssl.", "security.providers")
"""Prefixes of the names of settings that are refused, because connections are in plaintext."""

GROUPS = "no consumer group is joined, offsets are stored in the query's checkpoint"
SOCKETS = "the operating system's defaults apply"
RECONNECTING = "the pause before a new attempt is kafka.retry.backoff.ms"
METADATA = "metadata is requested when it is needed, from the servers that kafka.bootstrap.servers names"
METRICS = "the client keeps no metrics"
SENDING = "a task sends one batch of a partition at a time, as soon as the batch is full or the rows have ended"
COMPRESSION = "each codec has one level"

WITHOUT_EFFECT: Mapping[str, str] = {
    "allow.auto.create.topics": "a read creates no topic",
    "auto.commit.interval.ms": GROUPS,
    "auto.include.jmx.reporter": METRICS,
    "buffer.memory": SENDING,
    "client.dns.lookup": METADATA,
    "client.rack": "records are fetched from the leader of a partition",
    "compression.gzip.level": COMPRESSION,
    "compression.lz4.level": COMPRESSION,
    "compression.zstd.level": COMPRESSION,
    "connections.max.idle.ms": SOCKETS,
    "enable.metrics.push": METRICS,
    "exclude.internal.topics": "a pattern never chooses an internal topic",
    "group.id": GROUPS,
    "group.instance.id": GROUPS,
    "group.protocol": GROUPS,
    "group.remote.assignor": GROUPS,
    "heartbeat.interval.ms": GROUPS,
    "linger.ms": SENDING,
    "max.block.ms": "the time limit of one call, with its retries, is kafka.default.api.timeout.ms",
    "max.in.flight.requests.per.connection": SENDING,
    "max.poll.interval.ms": GROUPS,
    "max.poll.records": "a fetch is bounded in bytes by kafka.max.partition.fetch.bytes",
    "max.request.size": "the topic's max.message.bytes limits the size of records",
    "metadata.max.age.ms": METADATA,
    "metadata.max.idle.ms": METADATA,
    "metadata.recovery.rebootstrap.trigger.ms": METADATA,
    "metadata.recovery.strategy": METADATA,
    "metric.reporters": METRICS,
    "metrics.num.samples": METRICS,
    "metrics.recording.level": METRICS,
    "metrics.sample.window.ms": METRICS,
    "partition.assignment.strategy": GROUPS,
    "partitioner.adaptive.partitioning.enable": "records without a key go to one partition after the other",
    "partitioner.availability.timeout.ms": "records without a key go to one partition after the other",
    "receive.buffer.bytes": SOCKETS,
    "reconnect.backoff.max.ms": RECONNECTING,
    "reconnect.backoff.ms": RECONNECTING,
    "retries": "attempts are repeated until kafka.delivery.timeout.ms",
    "send.buffer.bytes": SOCKETS,
    "session.timeout.ms": GROUPS,
    "share.acknowledgement.mode": GROUPS,
    "share.acquire.mode": GROUPS,
    "socket.connection.setup.timeout.max.ms": "the limit of each attempt is kafka.socket.connection.setup.timeout.ms",
    "transaction.timeout.ms": "only a write with exactlyOnce=true opens transactions",
}
"""Settings of Kafka's consumer and producer that are accepted without effect, each with the reason."""


class Options:
    """The options of a query, as texts. Names are compared without regard to upper and lower case."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = {name.lower(): value.strip(JAVA_WHITESPACE) for name, value in texts.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str, default: str = "") -> str:
        return self._texts.get(name.lower(), default)

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise OptionError(f"option {name} is required{', but it is empty' if name in self else ''}")
        return value

    def integer(self, name: str, default: int, *, at_least: int = 0, at_most: int = (1 << 31) - 1) -> int:
        text = self.text(name)
        if name not in self:
            return default
        digits = text[1:] if text.startswith(("-", "+")) else text
        value = int(text) if digits.isdecimal() else None
        if value is None or not at_least <= value <= at_most:
            raise OptionError(f"option {name} is {text!r}: it must be a whole number from {at_least} to {at_most}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.choice(name, {"true": 1, "false": 0}, str(default).lower()))

    def choice(self, name: str, choices: Mapping[str, int], default: str) -> int:
        text = self.text(name, default)
        if text.lower() not in choices:
            raise OptionError(f"option {name} is {text!r}: it must be {' or '.join(choices)}")
        return choices[text.lower()]

    def first_of(self, *names: str) -> str | None:
        """Return the first of these names that is set. The other names are ignored, as in Spark's Kafka source."""
        return next((name for name in names if name in self), None)

    def at_most_one(self, *names: str) -> str | None:
        """Return the one of these names that is set, or None. Raises OptionError if several are set."""
        given_names = [name for name in names if name in self]
        if len(given_names) > 1:
            raise OptionError(f"options {' and '.join(given_names)} cannot be used together: set only one")
        return given_names[0] if given_names else None

    def refuse_unknown(self, known: Iterable[str], unsupported: Mapping[str, str]) -> None:
        """Raise OptionError for the first option that is not accepted. The message contains the reason, or, for an
        unknown option, a similar name if there is one.

        The `known` options are accepted. An option of REFUSED_UNLESS is accepted if it has the value stated there.
        `unsupported` contains reasons in addition to those in REFUSED.
        """
        names = {name.lower(): name for name in known}
        reasons = {name.lower(): (name, reason) for name, reason in unsupported.items()}
        reasons |= {PREFIX + name: (PREFIX + name, reason) for name, reason in REFUSED.items()}
        for name, value in self._texts.items():
            if name in names or REFUSED_UNLESS.get(name) == value.lower():
                continue
            if name in reasons:
                raise OptionError("option {} is not accepted by format tidelog: {}".format(*reasons[name]))
            if name.removeprefix(PREFIX).startswith(SECURITY):
                _refuse_security(name)
            similar = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {names[similar[0]]}?" if similar else ""
            raise OptionError(f"option {name} is not known to format tidelog{hint}")

    def warn_without_effect(self, reasons: Mapping[str, str]) -> None:
        """Log a warning for each of these options that is set: it is accepted but has no effect."""
        for name, reason in reasons.items():
            if name in self:
                logger.warning("option %s has no effect in format tidelog: %s", name, reason)


def bootstrap(options: Options) -> str:
    """Return the bootstrap servers. Raises OptionError if the list is malformed."""
    servers = options.required_text(PREFIX + "bootstrap.servers")
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
    raise OptionError(
        f"option {name} is not accepted by format tidelog: connections are in plaintext, without TLS or SASL"
    )
