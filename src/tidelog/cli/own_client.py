"""What commands ask of brokers with messages of the protocol, for which our own client has no call.

Imports of the client are left to the calls: most commands do without it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from tidelog.cli.connection import ConnectionOptions, reach
from tidelog.cli.errors import CommandError

if TYPE_CHECKING:
    from tidelog.client.blocking import Client
    from tidelog.client.cluster import Address
    from tidelog.wire.message import Message

M = TypeVar("M", bound="Message")


@contextmanager
def connected(bootstrap: str) -> "Iterator[Client]":
    """A client, whatever it raises in one line. Raises CommandError, also at once when nobody listens there."""
    reach(bootstrap)
    with ConnectionOptions(bootstrap, {}).open() as client:
        yield client


def ask_any(client: "Client", request: "Message", kind: type[M]) -> M:
    """Ask whichever broker answers."""
    answer = client.ask_any(request, client.deadline())
    assert isinstance(answer, kind)
    return answer


def ask(client: "Client", requests: "Sequence[tuple[Address, Message]]", kind: type[M]) -> list[M]:
    """One answer for each request. Raises CommandError when a broker cannot be reached."""
    answers = []
    for answer in ask_each(client, requests, kind):
        if isinstance(answer, CommandError):
            raise answer
        answers.append(answer)
    return answers


def ask_each(client: "Client", requests: "Sequence[tuple[Address, Message]]", kind: type[M]) -> list[M | CommandError]:
    """One answer for each request, or why there is none: a broker that cannot be reached does not hide the others."""
    from tidelog.client.operations import Ask, Request

    deadline = client.deadline()
    tickets = client.send_all(Ask([Request(address, message) for address, message in requests]), deadline)
    return [
        answer if isinstance(answer, kind) else CommandError(str(answer))
        for answer in client.collect(tickets, deadline)
    ]


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
