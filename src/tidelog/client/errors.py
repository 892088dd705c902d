"""What goes wrong between a client and its brokers, by who has to act.

A broker's own answer that something is wrong is a `tidelog.wire.errors.ApiError`; these are the rest.
"""

from tidelog.client.cluster import Address


class ClientError(Exception):
    """Anything that this package raises itself."""


class Unreachable(ClientError):
    """Worth another attempt: brokers restart."""


class BrokerUnreachable(Unreachable):
    """No connection, or it broke before the answer came. The request may or may not have been carried out."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(f"broker {address} cannot be reached: {reason}")
        self.address = address


class NoBrokerReachable(Unreachable):
    """None of the bootstrap servers, nor any broker learnt from them, answers."""


class BrokenProtocol(ClientError):
    """The peer sent what the protocol does not allow; the connection is of no use any more."""


class ApiNotSupported(ClientError):
    """The broker and this client have no version of an API in common, or none that can carry the request."""


class GaveUp(ClientError):
    """The time for one call is over; `__cause__` is what the last attempt met."""
