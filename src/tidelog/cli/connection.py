"""How commands reach a cluster: shared options, librdkafka's clients without their chatter, errors in our words."""

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

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

    from tidelog.client.blocking import Client
    from tidelog.client.each import Failure

CLIENT_ID = "tidelog-cli"

ANSWER_MS = 15_000
"""How long an administrative request may take."""
CONNECT_S = 5.0
CONNECT_MS = 5_000

REPLICAS_MAX = 2**15 - 1
PARTITION_MAX = 2**31 - 1
"""What the protocol has room for: copies of a partition, and a partition's number."""
PARTITIONS_MAX = 100_000
"""Of a topic: librdkafka asks for no more."""

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="TIDELOG_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker of the cluster, or several, separated by commas; without a port, 9092.",
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
NO_TOPIC_NAME = "not a legal topic name: it takes 1 to 249 letters, digits, dots, _ and -"
TOO_LARGE = "larger than the topic's max.message.bytes (tidelog topic config can raise it)"
REMEDIES = {3: NO_SUCH_TOPIC, 10: TOO_LARGE, 17: NO_TOPIC_NAME, 100: NO_SUCH_TOPIC}
"""What to say of error codes: UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, INVALID_TOPIC_EXCEPTION and
UNKNOWN_TOPIC_ID."""

LOCALHOST = "localhost:9092"
DEFAULT_PORT = 9092
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class ConnectionOptions(NamedTuple):
    """Where the cluster is, and with what client settings it is reached."""

    bootstrap: str
    settings: dict[str, str]

    @contextmanager
    def open(self) -> "Iterator[Client]":
        """Our own client, which gives each of many things an answer of its own and takes any bytes for names. What it
        raises in the block becomes a CommandError.
        """
        with in_one_line(), open_client(self.bootstrap, self.settings) as client:
            yield client

    def producer(self, settings: Mapping[str, Any]) -> "Producer":
        from confluent_kafka import Producer

        return Producer(self.configuration(settings))

    def consumer(self, settings: Mapping[str, Any]) -> "Consumer":
        from confluent_kafka import Consumer

        # A damaged batch is an error here, not a value: librdkafka looks only when it is told to.
        return Consumer(self.configuration({"check.crcs": True, **settings}))

    def configuration(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What a client of librdkafka's is made with; the user's own settings come last and win."""
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": CLIENT_ID,
            "log_level": 0,  # errors reach us as results; librdkafka's own lines on stderr would only repeat them
            "error_cb": lambda error: None,
            **settings,
            **self.settings,
        }


def open_client(bootstrap: str, settings: Mapping[str, str] = MappingProxyType({})) -> "Client":
    """Not connected yet. Raises UsageError for an address that is none, and for settings that do not fit together."""
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
    """Raise KafkaException for a setting that librdkafka does not know: without a word it would have no effect."""
    from confluent_kafka import Producer

    Producer({"log_level": 0, **settings})


class Outage:
    """librdkafka goes on trying when the brokers have gone, for minutes or for good: this says so, once.

    It is a client's `error_cb`, which only notes; what is printed there could meet a Ctrl-C inside librdkafka's call.
    """

    def __init__(self) -> None:
        self.noted = False
        self.told = False

    def __call__(self, error: "KafkaError") -> None:
        self.noted = self.noted or error.name() == "_ALL_BROKERS_DOWN"

    def tell(self) -> None:
        if self.noted and not self.told:
            self.told = True
            print("No broker can be reached any more; still trying. Ctrl-C stops.", file=sys.stderr)


def connect(bootstrap: str, client: Iterable[str]) -> ConnectionOptions:
    """The connection that the options name. Raises CommandError at once when nobody listens there."""
    settings = key_values(client, "-X", "security.protocol=SSL")
    reach(bootstrap)
    return ConnectionOptions(bootstrap, settings)


def reach(bootstrap: str) -> None:
    """Connect to one of the addresses and hang up. librdkafka would try again for a long time, and say less."""
    reasons = []
    for host, port in host_ports(bootstrap):
        address = joined(host, port)
        try:
            socket.create_connection((host, port), timeout=CONNECT_S).close()
        except (socket.gaierror, UnicodeError):  # the latter for what cannot even be asked for
            reasons.append(f"host {host} cannot be found")
        except TimeoutError:
            reasons.append(f"{address} does not answer")
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            reasons.append(f"nothing listens on {address}" if refused else f"{address}: {error.strerror or error}")
        else:
            return
    remedy = "is a broker running? Start one with: tidelog start"
    raise NoAnswerError(f"{'; '.join(reasons)}: {remedy} (or name another with --bootstrap)")


def host_ports(bootstrap: str) -> list[tuple[str, int]]:
    """The addresses, separated by commas. Raises UsageError, also where there is none."""
    parts = [part for part in map(str.strip, bootstrap.split(",")) if part]
    try:
        if not parts:
            raise UsageError(f"takes HOST:PORT, for example {LOCALHOST}, not {bootstrap!r}")
        return [host_port(part) for part in parts]
    except UsageError as error:
        option = "TIDELOG_BOOTSTRAP" if os.environ.get("TIDELOG_BOOTSTRAP") == bootstrap else "--bootstrap"
        raise UsageError(f"{option} {error}") from None


def host_port(address: str) -> tuple[str, int]:
    """Split `HOST[:PORT]`; the port defaults to 9092, as for librdkafka. An IPv6 address stands in brackets. A
    security protocol before it (`SASL_SSL://`) is taken, as Kafka's clients take it.

    Raises UsageError, to be read behind the name of the option.
    """
    scheme, separator, rest = address.partition("://")
    if separator and scheme.upper() in SECURITY_PROTOCOLS:
        address = rest
    elif separator:
        plain = rest.partition("/")[0] or LOCALHOST
        raise UsageError(f"takes HOST:PORT without {scheme}://, that is {plain}, not {address!r}")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(DEFAULT_PORT)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in host and bare == host:
        raise UsageError(f"takes an IPv6 address in brackets, for example [::1]:{DEFAULT_PORT}, not {address!r}")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535 or not bare:
        raise UsageError(f"takes HOST:PORT, for example {LOCALHOST}, not {address!r}")
    return bare, int(port)


def joined(host: str, port: int) -> str:
    """`HOST:PORT`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def key_value(text: str, option: str, example: str) -> tuple[str, str]:
    """Split `KEY=VALUE`. Raises UsageError that shows the option's form."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"{option} takes KEY=VALUE, for example {option} {example}, not {text!r}")
    return key.strip(), value.strip()


def key_values(texts: Iterable[str], option: str, example: str) -> dict[str, str]:
    """Split each `KEY=VALUE`. Raises UsageError as `key_value`, and for a key that comes twice."""
    found: dict[str, str] = {}
    for text in texts:
        key, value = key_value(text, option, example)
        if key in found:
            raise UsageError(f"{key} is set twice")
        found[key] = value
    return found


@contextmanager
def in_one_line() -> Iterator[None]:
    """What our own client raises becomes a CommandError."""
    from tidelog.client.errors import ClientError
    from tidelog.wire.errors import ApiError

    try:
        yield
    except (ApiError, ClientError) as error:
        raise client_error(error) from error


def client_error(error: "Failure", subject: str = "") -> CommandError:
    """What our own client met, as one line that says what to do."""
    from tidelog.client.errors import GaveUp, Unreachable
    from tidelog.wire.errors import ApiError, ErrorCode

    about = f"{subject}: " if subject else ""
    if isinstance(error, Unreachable) or (isinstance(error, GaveUp) and isinstance(error.__cause__, Unreachable)):
        return NoAnswerError(
            f"{about}no answer from the cluster ({one_line(str(error))}): is that a Kafka broker,"
            " and can its advertised address be reached from here?"
        )
    if not isinstance(error, ApiError):
        return CommandError(f"{about}{one_line(str(error))}")
    if remedy := REMEDIES.get(error.code):
        return CommandError(about + remedy)
    if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return CommandError(f"{subject or 'it'} already exists (--if-not-exists accepts that)")
    name = ErrorCode(error.code).name
    text = one_line(error.message) or name
    return CommandError(about + (text if name in text else f"{text} ({name})"))


def kafka_error(raised: "KafkaException | KafkaError", subject: str = "") -> CommandError:
    """librdkafka's error as one line that says what to do."""
    from confluent_kafka import KafkaError, KafkaException

    error = raised.args[0] if isinstance(raised, KafkaException) else raised
    if not isinstance(error, KafkaError):
        return CommandError(one_line(str(error)))
    about = f"{subject}: " if subject else ""
    match error.code():
        case KafkaError._TRANSPORT | KafkaError._TIMED_OUT | KafkaError._ALL_BROKERS_DOWN | KafkaError._RESOLVE:
            return NoAnswerError(
                f"{about}no answer from the cluster ({one_line(error.str())}): is that a Kafka broker,"
                " and can its advertised address be reached from here?"
            )
        case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC:
            return CommandError(about + NO_SUCH_TOPIC)
        case KafkaError.TOPIC_EXCEPTION:
            return CommandError(about + NO_TOPIC_NAME)
        case KafkaError._UNKNOWN_PARTITION:
            return CommandError(f"{about}no such partition (tidelog topic describe shows them)")
        case KafkaError.MSG_SIZE_TOO_LARGE:
            return CommandError(about + TOO_LARGE)
        case KafkaError._AUTHENTICATION | KafkaError.SASL_AUTHENTICATION_FAILED:
            return CommandError(
                f"{about}authentication failed: {one_line(error.str())} (settings: -X sasl.username=...)"
            )
    return CommandError(f"{about}{one_line(error.str())} ({error.name()})")


def as_command_error(error: Exception) -> CommandError | None:
    """What came of a request, in one line; None for what is no error of the cluster's."""
    from tidelog.client.errors import ClientError
    from tidelog.wire.errors import ApiError

    if isinstance(error, CommandError):
        return error
    return client_error(error) if isinstance(error, ApiError | ClientError) else None


def one_line(text: str) -> str:
    return " ".join(text.split())
