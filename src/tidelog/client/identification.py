"""The two brokers of a connection prove their identities to each other. The sender, which opened the connection,
proves that it is a broker of the cluster. The receiver proves that it is the broker to which the sender wants to
connect.

Both sides know the incarnations of brokers. These are random texts in the metadata journal, and only processes that
can use the metadata store can read them. The incarnations are never sent. Instead, each side sends a random number and
a MAC (HMAC, RFC 2104). The MAC is computed from the whole claim (see below), which contains the sender's number, and
from the receiver's number. The key of the MAC is made of the incarnations of the two brokers. Because the numbers are
new on each connection, a recorded exchange proves nothing on another connection.

A broker that is not registered yet proves only that it can use the store: the key is made only of the receiver's
incarnation. Such a connection is used only to register the broker.

The messages are the data of Envelope requests (KIP-590) and of their responses:

    claim      -> magic, format, 1, flags, sender's id, receiver's id, sender's number, cluster id
    challenge  <- format, receiver's number, receiver's MAC
    proof      -> magic, format, 2, sender's MAC
               <- no data
"""

import hashlib
import hmac
from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.client.errors import BrokenProtocol
from tidelog.wire.errors import ErrorCode, error_for
from tidelog.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

if TYPE_CHECKING:
    from tidelog.client.async_link import AsyncLink

MAGIC: Final = b"TLID"
"""The first bytes of a claim and of a proof. No other content of an envelope begins with them."""
FORMAT_VERSION: Final = 1
CLAIM, PROOF = 1, 2
REGISTERED: Final = 1
"""The flag of a registered sender, whose incarnation is part of the key."""
NUMBER_BYTES: Final = 16
MAC_BYTES: Final = 32
CLUSTER_ID_BYTES_MAX: Final = 255

_HEAD = Struct(">4sBB")
_CLAIM = Struct(f">Bii{NUMBER_BYTES}sB")
_CHALLENGE = Struct(f">B{NUMBER_BYTES}s{MAC_BYTES}s")


class Claim(NamedTuple):
    """The first message of the broker that opened the connection."""

    broker_id: int
    receiver_id: int
    is_registered: bool
    """Whether the sender's registration is in the journal. If so, the sender can send all kinds of requests."""
    number: bytes
    cluster_id: str

    def encode(self) -> bytes:
        cluster_id = self.cluster_id.encode()[:CLUSTER_ID_BYTES_MAX]
        fields = _CLAIM.pack(self.is_registered, self.broker_id, self.receiver_id, self.number, len(cluster_id))
        return _HEAD.pack(MAGIC, FORMAT_VERSION, CLAIM) + fields + cluster_id


class Challenge(NamedTuple):
    """The receiver's response to a claim."""

    number: bytes
    mac: bytes

    def encode(self) -> bytes:
        return _CHALLENGE.pack(FORMAT_VERSION, self.number, self.mac)

    @classmethod
    def decode(cls, data: bytes | None) -> "Challenge":
        """Decode a challenge. Raises BrokenProtocol."""
        try:
            version, number, mac = _CHALLENGE.unpack(data or b"")
        except StructError:
            raise BrokenProtocol("the response to this broker's claim has a wrong length") from None
        if version != FORMAT_VERSION:
            raise BrokenProtocol(f"version {version} of the peer's challenge is unknown here")
        return cls(number, mac)


class MalformedIdentification(ValueError):
    """A claim or a proof cannot be decoded."""


class Identity(NamedTuple):
    """The facts with which a broker proves its identity. They come from its metadata image at the time when the
    connection opens.
    """

    broker_id: int
    incarnation: str
    """Empty unless the broker's registration is in the journal."""
    receiver_id: int
    receiver_incarnation: str
    cluster_id: str


def is_identification(data: bytes) -> bool:
    return data[: len(MAGIC)] == MAGIC


def decode_message(data: bytes) -> Claim | bytes:
    """Return the claim, or the MAC of a proof. Raises MalformedIdentification."""
    try:
        _, version, step = _HEAD.unpack_from(data)
        if version != FORMAT_VERSION:
            raise MalformedIdentification(f"version {version} of the identification is unknown here")
        if step == PROOF and len(data) == _HEAD.size + MAC_BYTES:
            return data[_HEAD.size :]
        flags, broker_id, receiver_id, number, length = _CLAIM.unpack_from(data, _HEAD.size)
        cluster_id = str(data[_HEAD.size + _CLAIM.size :], "utf-8")
    except (StructError, UnicodeDecodeError) as error:
        raise MalformedIdentification(f"the identification cannot be decoded: {error}") from None
    if step != CLAIM or flags > REGISTERED or len(data) != _HEAD.size + _CLAIM.size + length:
        raise MalformedIdentification("the identification cannot be decoded")
    return Claim(broker_id, receiver_id, flags == REGISTERED, number, cluster_id)


def encode_proof(mac: bytes) -> bytes:
    return _HEAD.pack(MAGIC, FORMAT_VERSION, PROOF) + mac


def make_macs(claim: Claim, receiver_number: bytes, receiver_incarnation: str, incarnation: str) -> tuple[bytes, bytes]:
    """Return the MACs of the receiver and of the sender. `incarnation` is empty if the sender is not registered."""
    key = hashlib.sha256(f"tidelog broker {receiver_incarnation} {incarnation}".encode()).digest()
    content = claim.encode() + receiver_number
    receiver, sender = (hmac.digest(key, side + content, "sha256") for side in (b"receiver", b"sender"))
    return receiver, sender


def is_same_mac(one: bytes, other: bytes) -> bool:
    """Return whether two MACs are equal. The time of the comparison does not depend on the position of a difference."""
    return hmac.compare_digest(one, other)


async def identify(link: "AsyncLink", identity: Identity, new_number: Callable[[], bytes]) -> None:
    """Identify this broker on a new connection. `new_number` returns NUMBER_BYTES random bytes.

    Raises ApiError if the peer does not accept this broker, BrokenProtocol if the peer is not the expected broker, and
    OSError if the connection ends.
    """
    claim = Claim(
        identity.broker_id, identity.receiver_id, bool(identity.incarnation), new_number(), identity.cluster_id
    )
    challenge = Challenge.decode(await _exchange(link, claim.encode()))
    receiver_mac, sender_mac = make_macs(claim, challenge.number, identity.receiver_incarnation, identity.incarnation)
    if not is_same_mac(receiver_mac, challenge.mac):
        raise BrokenProtocol(f"the peer does not prove that it is broker {identity.receiver_id} of this cluster")
    await _exchange(link, encode_proof(sender_mac))


async def _exchange(link: "AsyncLink", data: bytes) -> bytes | None:
    request = EnvelopeRequest(request_data=data, request_principal=None)
    response = await link.ask(request, EnvelopeResponse)
    if response.error_code != ErrorCode.NONE:
        raise error_for(response.error_code, "the peer does not accept this process as a broker of its cluster")
    return response.response_data
