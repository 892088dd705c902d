"""Settings of the transaction coordinator."""

from typing import NamedTuple

TRANSACTIONAL_IDS_MAX = 200_000
"""Maximum number of transactional ids in one partition of `__transaction_state`. Beyond it, a producer with a new id is
refused, so that clients with random ids cannot fill the memory."""
PARTITIONS_MAX = 10_000
"""Maximum number of partitions in one transaction. Each change of a transaction writes all of them into a record."""
BYTES_MAX = 256 << 20
"""Maximum size of all transactions in one partition of `__transaction_state`, in bytes, as `size_of` estimates
it. Beyond this size, new transactional ids and more partitions are refused."""
BROKER_BYTES_MAX = 1 << 30
"""Maximum size of all transactions of a broker, in bytes, as `size_of` estimates it. A client with random ids reaches
every partition, so without this limit it could use BYTES_MAX in each of them."""


class TransactionMemory:
    """The size of all transactions of a broker. Its coordinators share this object."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


class TransactionSettings(NamedTuple):
    """All times are in ms."""

    id_expiration_ms: int
    """transactional.id.expiration.ms: a transactional id that was not used for this time is forgotten, unless it has an
    open transaction."""
