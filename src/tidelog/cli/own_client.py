"""Our own client, for what librdkafka has no call for; its errors become one line. It speaks PLAINTEXT only.

Imports of the client are left to the calls: most commands do without it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from tidelog.cli.connection import ANSWER_MS, host_ports, reach
from tidelog.cli.errors import CommandError

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.client.cluster import Address
    from tidelog.wire.message import Message

M = TypeVar("M", bound="Message")


def open_client(bootstrap: str) -> "Client":
    """Not connected yet. Raises UsageError for an address that is none."""
    from tidelog.client.blocking import Client, ClientConfig
    from tidelog.client.cluster import Address

    addresses = [Address(*address) for address in host_ports(bootstrap)]
    config = ClientConfig(client_id="tidelog-cli", request_timeout_ms=ANSWER_MS, default_api_timeout_ms=ANSWER_MS)
    return Client(addresses, config)


@contextmanager
def connected(bootstrap: str) -> "Iterator[Client]":
    """A client, whatever it raises in one line. Raises CommandError, also at once when nobody listens there."""
    reach(bootstrap)
    with in_one_line(), open_client(bootstrap) as client:
        yield client


@contextmanager
def in_one_line() -> Iterator[None]:
    """What the client raises becomes a CommandError."""
    from tidelog.client.errors import ClientError
    from tidelog.wire.errors import ApiError, ErrorCode

    try:
        yield
    except ApiError as error:
        raise CommandError(error.message or ErrorCode(error.code).name) from error
    except ClientError as error:
        raise CommandError(str(error)) from error


def ask_any(client: "Client", request: "Message", kind: type[M]) -> M:
    """Ask whichever broker answers."""
    answer = client.ask_any(request, client.deadline())
    assert isinstance(answer, kind)
    return answer


def ask(client: "Client", requests: "Sequence[tuple[Address, Message]]", kind: type[M]) -> list[M]:
    """One answer for each request. Raises CommandError when a broker cannot be reached."""
    from tidelog.client.operations import Ask, Request

    deadline = client.deadline()
    tickets = client.send_all(Ask([Request(address, message) for address, message in requests]), deadline)
    answers = []
    for answer in client.collect(tickets, deadline):
        if not isinstance(answer, kind):
            raise CommandError(str(answer))
        answers.append(answer)
    return answers


def brokers(client: "Client") -> "dict[int, Address]":
    """Where the cluster's brokers listen, by their numbers, in the order of these."""
    from tidelog.client.cluster import Address
    from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

    found = ask_any(client, MetadataRequest(topics=[]), MetadataResponse).brokers
    return {broker.node_id: Address(broker.host, broker.port) for broker in sorted(found, key=lambda b: b.node_id)}


def broker_of(found: "Mapping[int, Address]", number: int) -> "Address":
    """Where the broker of that number listens. Raises CommandError."""
    if number not in found:
        raise CommandError(f"there is no broker {number}; the cluster has {', '.join(map(str, found))}")
    return found[number]


def check(code: int, message: str | None) -> None:
    """Raise CommandError unless the code is none."""
    from tidelog.client.error_codes import name_of

    if code:
        raise CommandError(message or name_of(code))
