"""Connect commands to a cluster: define the options that commands share, open clients, and convert errors to one line.

There are two clients: our own client (`tidelog.client`), and librdkafka. Only `produce`, `consume --group` and `bench`
send requests with librdkafka. All commands with -X use it to check the settings.
"""

import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tidelog.cli.errors import CommandError, NoAnswerError, UsageError
from tidelog.cli.security import security_of
from tidelog.model.addresses import host_port_text

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

    from tidelog.client.blocking import Client
    from tidelog.client.each import Failure

CLIENT_ID = "tidelog-cli"

ANSWER_MS = 15_000
"""Time limit of one call of our own client including its retries, in milliseconds."""
CONNECT_S = 5.0
CONNECT_MS = 5_000
"""Time limit for establishing one connection, in seconds and in milliseconds."""

REPLICAS_MAX = 2**15 - 1
PARTITION_MAX = 2**31 - 1
"""Largest values of the protocol's fields: the number of replicas of a partition (int16), and the number that
identifies a partition (int32)."""
PARTITIONS_MAX = 100_000
"""Upper bound on a topic's partitions, because librdkafka rejects topics with more partitions."""

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="TIDELOG_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker, or several, separated by commas; the default port is 9092.",
        rich_help_panel="Connection",
    ),
]
ClientSettings = Annotated[
    list[str],
    typer.Option(
        "--client",
        "-X",
        metavar="KEY=VALUE",
        show_default=False,
        help="A librdkafka setting, e.g. security.protocol=SSL; repeatable.",
        rich_help_panel="Connection",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

NO_SUCH_TOPIC = "no such topic (tidelog topic list shows all)"
NO_TOPIC_NAME = "not a legal topic name: use 1 to 249 letters, digits, dots, _ and -"
TOO_LARGE = "a record batch is larger than the topic's max.message.bytes (tidelog topic config can raise it)"
NO_BROKER = "No broker can be reached any more; still trying. Ctrl-C stops."
NO_DELETION = "the broker does not allow topics to be deleted (delete.topic.enable=false)"
INTERNAL_TOPIC = "an internal topic, which only brokers write"
SIMILAR_TOPIC = (
    "the broker refuses this name, probably because a topic exists whose name differs only in dots and underscores"
    " (tidelog topic list shows all)"
)
REMEDIES = {3: NO_SUCH_TOPIC, 10: TOO_LARGE, 73: NO_DELETION, 100: NO_SUCH_TOPIC}
"""Our own texts for the error codes UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, TOPIC_DELETION_DISABLED and
UNKNOWN_TOPIC_ID."""

LOCALHOST = "localhost:9092"
DEFAULT_PORT = 9092
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class ConnectionOptions(NamedTuple):
    """The addresses of the cluster and the librdkafka settings from the command line."""

    bootstrap: str
    settings: dict[str, str]

    @contextmanager
    def open(self) -> "Iterator[Client]":
        """Open our own client. Its exceptions in the block become CommandError.

        Unlike librdkafka, it reports a result for each topic, partition or group, and accepts names of any bytes.
        """
        with one_line_errors(), open_client(self.bootstrap, self.settings) as client:
            yield client

    def producer(self, settings: Mapping[str, Any]) -> "Producer":
        from confluent_kafka import Producer

        return Producer(self.configuration(settings))

    def consumer(self, settings: Mapping[str, Any]) -> "Consumer":
        from confluent_kafka import Consumer

        # A damaged batch must be an error, not a value: librdkafka verifies checksums only with this setting.
        return Consumer(self.configuration({"check.crcs": True, **settings}))

    def configuration(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of a librdkafka client. The user's settings override `settings`."""
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": CLIENT_ID,
            "log_level": 0,  # errors are reported as results; librdkafka's log lines on stderr would only repeat them
            "error_cb": lambda error: None,
            **settings,
            **self.settings,
        }


def open_client(bootstrap: str, settings: Mapping[str, str] = MappingProxyType({})) -> "Client":
    """Create our own client. It connects when it sends its first request.

    Raises UsageError for a malformed address and for settings that contradict each other, and KafkaException for an
    unknown setting.
    """
    from tidelog.client.blocking import Client, ClientConfig
    from tidelog.client.cluster import Address

    addresses = [Address(*address) for address in host_ports(bootstrap)]
    if settings:
        check_settings(settings)
    config = ClientConfig(
        client_id=settings.get("client.id", CLIENT_ID),
        request_timeout_ms=ANSWER_MS,
        default_api_timeout_ms=ANSWER_MS,
        socket_connection_setup_timeout_ms=CONNECT_MS,
        security=security_of(settings),
    )
    return Client(addresses, config)


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise KafkaException for a setting that librdkafka does not know. Our own client would silently ignore it."""
    from confluent_kafka import Producer

    Producer({"log_level": 0, **settings})


class Outage:
    """Reports once that no broker can be reached. librdkafka itself retries silently, for minutes or forever.

    An object of this class is the `error_cb` of a librdkafka client. The callback only sets a flag, and `report` prints
    the message later. If the callback printed the message, a Ctrl-C during the printing would raise KeyboardInterrupt
    inside librdkafka's call.
    """

    def __init__(self) -> None:
        self.all_brokers_down = False
        """Whether librdkafka has reported that all brokers are down."""
        self.is_printed = False

    def __call__(self, error: "KafkaError") -> None:
        self.all_brokers_down = self.all_brokers_down or error.name() == "_ALL_BROKERS_DOWN"

    def report(self) -> None:
        """Print the message if librdkafka has reported an outage; at most once."""
        if self.all_brokers_down and not self.is_printed:
            self.is_printed = True
            print(NO_BROKER, file=sys.stderr)


def connect(bootstrap: str, client: Iterable[str]) -> ConnectionOptions:
    """Return the connection options, after a check that one of the addresses accepts connections.

    Raises NoAnswerError if no address accepts a connection, and UsageError for a malformed option.
    """
    settings = key_values(client, "-X", "security.protocol=SSL")
    check_reachable(bootstrap)
    return ConnectionOptions(bootstrap, settings)


def check_reachable(bootstrap: str) -> None:
    """Check that one of the addresses accepts a connection. The connection is closed again.

    Raises NoAnswerError if no address accepts a connection. Without this check, librdkafka would retry for a long
    time and report fewer details of the reason.
    """
    reasons = []
    for host, port in host_ports(bootstrap):
        address = host_port_text(host, port)
        try:
            socket.create_connection((host, port), timeout=CONNECT_S).close()
        except (socket.gaierror, UnicodeError):  # UnicodeError: the name cannot be encoded for DNS
            reasons.append(f"host {host} cannot be found")
        except TimeoutError:
            reasons.append(f"{address} does not answer")
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            reasons.append(f"nothing listens on {address}" if refused else f"{address}: {error.strerror or error}")
        else:
            return
    remedy = "is a broker running? Start one with: tidelog start"
    raise NoAnswerError(f"{'; '.join(reasons)}: {remedy} (or name another broker with --bootstrap)")


def host_ports(bootstrap: str) -> list[tuple[str, int]]:
    """Split addresses separated by commas. Raises UsageError for a malformed address, and if there is no address."""
    parts = [part for part in map(str.strip, bootstrap.split(",")) if part]
    try:
        if not parts:
            raise UsageError(f"takes HOST:PORT, for example {LOCALHOST}, not {bootstrap!r}")
        return [host_port(part) for part in parts]
    except UsageError as error:
        option = "TIDELOG_BOOTSTRAP" if os.environ.get("TIDELOG_BOOTSTRAP") == bootstrap else "--bootstrap"
        raise UsageError(f"{option} {error}") from None


def host_port(address: str) -> tuple[str, int]:
    """Split `HOST[:PORT]`. The default port is 9092, as in librdkafka. An IPv6 address must be in brackets.

    A security protocol before the host (`SASL_SSL://`) is accepted and ignored, as in Kafka's clients. Raises
    UsageError. Its message lacks the name of the option; the caller must put the name before the message.
    """
    scheme, separator, rest = address.partition("://")
    if separator and scheme.upper() in SECURITY_PROTOCOLS:
        address = rest
    elif separator:
        without_scheme = rest.partition("/")[0] or LOCALHOST
        raise UsageError(f"takes HOST:PORT without {scheme}://, that is {without_scheme}, not {address!r}")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(DEFAULT_PORT)
    bare_host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in host and bare_host == host:
        raise UsageError(f"takes an IPv6 address in brackets, for example [::1]:{DEFAULT_PORT}, not {address!r}")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535 or not bare_host:
        raise UsageError(f"takes HOST:PORT, for example {LOCALHOST}, not {address!r}")
    return bare_host, int(port)


def key_value(text: str, option: str, example: str) -> tuple[str, str]:
    """Split `KEY=VALUE`, the value of an option. Raises UsageError with the name of the option and the example."""
    return split_key_value(text, f"{option} takes KEY=VALUE, for example {option} {example}")


def split_key_value(text: str, expectation: str) -> tuple[str, str]:
    """Split `KEY=VALUE`. Raises UsageError. Its message begins with `expectation`, a text that describes the
    expected value.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"{expectation}, not {text!r}")
    return key.strip(), value.strip()


def key_values(texts: Iterable[str], option: str, example: str) -> dict[str, str]:
    """Split each `KEY=VALUE`. Raises UsageError like `key_value`, and for a duplicate key."""
    values: dict[str, str] = {}
    for text in texts:
        key, value = key_value(text, option, example)
        if key in values:
            raise UsageError(f"{key} is set twice")
        values[key] = value
    return values


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Convert exceptions of our own client in the block to CommandError."""
    from tidelog.client.errors import ClientError
    from tidelog.wire.errors import ApiError

    try:
        yield
    except (ApiError, ClientError) as error:
        raise client_error(error) from error


def client_error(error: "Failure", subject: str = "", *, topic: str = "") -> CommandError:
    """Convert an error of our own client to one line that says what to do.

    The line begins with `subject`. `topic` is the name of the topic that the error is about. If `subject` is empty,
    the line begins with the topic.
    """
    from tidelog.client.errors import GaveUp, Unreachable
    from tidelog.wire.errors import ApiError, ErrorCode

    subject = subject or (topic and f"topic {topic}")
    about = f"{subject}: " if subject else ""
    unreachable = error.__cause__ if isinstance(error, GaveUp) else error
    if isinstance(unreachable, Unreachable):
        if unreachable.remedy:
            return NoAnswerError(f"{about}no answer from the cluster: {one_line(str(error))}")
        return NoAnswerError(
            f"{about}no answer from the cluster ({one_line(str(error))}): does a Kafka broker listen at the bootstrap"
            " address, and can its advertised address be reached from here?"
        )
    if not isinstance(error, ApiError):
        return CommandError(f"{about}{one_line(str(error))}")
    text = one_line(error.message)
    name = ErrorCode(error.code).name
    if error.code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return CommandError(about + invalid_topic_text(topic, text if name not in text else ""))
    if remedy := REMEDIES.get(error.code):
        return CommandError(about + remedy)
    if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return CommandError(f"{subject or 'it'} already exists (--if-not-exists accepts that)")
    text = text or name
    return CommandError(about + (text if name in text else f"{text} ({name})"))


def invalid_topic_text(topic: str, answer: str = "") -> str:
    """Return the reason for the code INVALID_TOPIC_EXCEPTION.

    Brokers use this code for illegal names, for names that are too similar to another topic's, and for internal
    topics. `answer` is the reason in the broker's answer; empty if the answer has no reason.
    """
    from tidelog.metadata.image import INTERNAL_TOPICS
    from tidelog.metadata.topic_names import name_refusal

    if topic and name_refusal(topic) is not None:
        return NO_TOPIC_NAME
    return answer or (INTERNAL_TOPIC if topic in INTERNAL_TOPICS else SIMILAR_TOPIC if topic else NO_TOPIC_NAME)


def kafka_error(raised: "KafkaException | KafkaError", subject: str = "", *, topic: str = "") -> CommandError:
    """Convert an error of librdkafka to one line that says what to do. For `subject` and `topic`, see
    `client_error`.
    """
    from confluent_kafka import KafkaError, KafkaException

    error = raised.args[0] if isinstance(raised, KafkaException) else raised
    if not isinstance(error, KafkaError):
        return CommandError(one_line(str(error)))
    subject = subject or (topic and f"topic {topic}")
    about = f"{subject}: " if subject else ""
    match error.code():
        case KafkaError._TRANSPORT | KafkaError._TIMED_OUT | KafkaError._ALL_BROKERS_DOWN | KafkaError._RESOLVE:
            return NoAnswerError(
                f"{about}no answer from the cluster ({one_line(error.str())}): does a Kafka broker listen at the"
                " bootstrap address, and can its advertised address be reached from here?"
            )
        case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC:
            return CommandError(about + NO_SUCH_TOPIC)
        case KafkaError.TOPIC_EXCEPTION:
            return CommandError(about + invalid_topic_text(topic))
        case KafkaError._UNKNOWN_PARTITION:
            return CommandError(f"{about}no such partition (tidelog topic describe shows all)")
        case KafkaError.MSG_SIZE_TOO_LARGE:
            return CommandError(about + TOO_LARGE)
        case KafkaError._AUTHENTICATION | KafkaError.SASL_AUTHENTICATION_FAILED:
            return CommandError(
                f"{about}authentication failed: {one_line(error.str())} (settings: -X sasl.username=...)"
            )
    return CommandError(f"{about}{one_line(error.str())} ({error.name()})")


def as_command_error(error: Exception) -> CommandError | None:
    """Convert an exception of a request to a CommandError of one line.

    Return a CommandError unchanged, and None for an error that did not come from our own client.
    """
    from tidelog.client.errors import ClientError
    from tidelog.wire.errors import ApiError

    if isinstance(error, CommandError):
        return error
    return client_error(error) if isinstance(error, ApiError | ClientError) else None


def one_line(text: str) -> str:
    """Replace each run of white space, which may contain line breaks, by one space."""
    return " ".join(text.split())
