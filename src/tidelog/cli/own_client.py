"""Send any protocol message through Tidelog's own client. Commands use these functions if the client has no
method for a message.

The client is imported inside the functions, because most commands do not need it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from tidelog.cli.connection import ConnectionOptions, check_reachable
from tidelog.cli.errors import CommandError
from tidelog.cli.tables import comma_separated

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.client.cluster import Address
    from tidelog.wire.message import Message

M = TypeVar("M", bound="Message")


@contextmanager
def connected(bootstrap: str) -> "Iterator[Client]":
    """Open a client, after a check that one of the addresses accepts connections.

    Raises NoAnswerError if no address accepts a connection within a few seconds. If the client raises an error inside
    the `with` block, the error becomes a CommandError.
    """
    check_reachable(bootstrap)
    with ConnectionOptions(bootstrap, {}).open() as client:
        yield client


def ask_any(client: "Client", request: "Message", response_class: type[M]) -> M:
    """Send a request to any broker that can be reached, and return the response."""
    answer = client.ask_any(request, client.deadline())
    assert isinstance(answer, response_class)
    return answer


def ask(client: "Client", requests: "Sequence[tuple[Address, Message]]", response_class: type[M]) -> list[M]:
    """Send the requests, and return one response for each of them, in the same order.

    Raises CommandError if a request gets no response.
    """
    answers = []
    for answer in ask_each(client, requests, response_class):
        if isinstance(answer, CommandError):
            raise answer
        answers.append(answer)
    return answers


def ask_each(
    client: "Client", requests: "Sequence[tuple[Address, Message]]", response_class: type[M]
) -> list[M | CommandError]:
    """Send the requests, and return one response or error for each of them, in the same order."""
    from tidelog.client.operations import Ask, Request

    deadline = client.deadline()
    tickets = client.send_all(Ask([Request(address, message) for address, message in requests]), deadline)
    return [
        answer if isinstance(answer, response_class) else CommandError(str(answer))
        for answer in client.collect(tickets, deadline)
    ]


def broker_addresses(client: "Client") -> "dict[int, Address]":
    """Ask the cluster for its brokers, and return their addresses by broker id. The ids are in ascending order."""
    from tidelog.client.cluster import Address
    from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

    nodes = ask_any(client, MetadataRequest(topics=[]), MetadataResponse).brokers
    return {broker.node_id: Address(broker.host, broker.port) for broker in sorted(nodes, key=lambda b: b.node_id)}


def broker_address(addresses: "Mapping[int, Address]", number: int) -> "Address":
    """Return the address of the broker with this id. Raises CommandError if the cluster has no such broker."""
    if number not in addresses:
        raise no_such_broker([number], addresses)
    return addresses[number]


def no_such_broker(unknown: Sequence[int], existing: Collection[int]) -> CommandError:
    """Return the error for the ids of brokers that do not exist. It names the ids of all brokers that exist."""
    missing = (
        f"there is no broker {unknown[0]}" if len(unknown) == 1 else f"there are no brokers {comma_separated(unknown)}"
    )
    noun = "broker" if len(existing) == 1 else "brokers"
    return CommandError(f"{missing}; the cluster has the {noun} {comma_separated(existing)}")


def raise_for_code(code: int, message: str | None) -> None:
    """Raise CommandError unless the error code is 0."""
    from tidelog.client.error_codes import error_name

    if code:
        raise CommandError(message or error_name(code))
