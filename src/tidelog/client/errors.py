"""Errors between a client and its brokers.

Error codes in a broker's response are not among them: `tidelog.wire.errors.ApiError` carries an error code.
"""

from tidelog.client.cluster import Address


class ClientError(Exception):
    """Base class of the errors that this package raises itself."""


class Unreachable(ClientError):
    """A certain broker, or every known broker, does not answer at present. Another attempt may succeed, because brokers
    restart.
    """

    remedy = ""
    """Advice for the user about this failure, usually a setting to change; empty if there is no advice. The error's
    text contains it."""


class BrokerUnreachable(Unreachable):
    """There is no connection to the broker, or the connection failed before the response arrived. In the second case,
    the broker may have executed the request.
    """

    def __init__(self, address: Address, reason: str, remedy: str = "", *, was_sent: bool = True) -> None:
        """If `was_sent` is False, the request was certainly not sent. Only `Channel` passes False; callers that do not
        distinguish the two cases leave it True.
        """
        super().__init__(f"broker {address} cannot be reached: {reason}" + (f"; {remedy}" if remedy else ""))
        self.address = address
        self.remedy = remedy
        self.was_sent = was_sent


class NoBrokerReachable(Unreachable):
    """The client can reach neither the bootstrap servers nor any other broker that it knows."""


class BrokenProtocol(ClientError):
    """The peer violated the protocol. The connection cannot be used any longer."""


class ApiNotSupported(ClientError):
    """The broker and this client support no common version of an API, or their highest common version does not have the
    request's fields.
    """


class GaveUp(ClientError):
    """The time limit of one call has passed, or would pass during the next pause. `__cause__` is the error of the
    last attempt.
    """


def failure_reason(error: OSError) -> str:
    """Return the reason of a failed connection, for messages."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if "EOF occurred" in str(error):  # ssl.SSLEOFError; its text contains no further information
        return "the broker closed the connection during the TLS handshake"
    return error.strerror or str(error)
