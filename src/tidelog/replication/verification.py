"""The time between a question to a transaction's coordinator and the append that depends on the answer (KIP-890)."""

from typing import TYPE_CHECKING

from tidelog.wire.errors import ApiError, ErrorCode, NotLeaderOrFollower

if TYPE_CHECKING:
    from tidelog.replication.partition import Partition


class Verification:
    """One question about a producer's transaction in a partition. It begins before the coordinator is asked.

    Raises InvalidProducerEpoch if the partition has a higher epoch of the producer.
    """

    __slots__ = ("_leader_epoch", "_partition", "_producer_id", "_producers", "_token")

    def __init__(self, partition: "Partition", producer_id: int, producer_epoch: int) -> None:
        self._partition = partition
        self._producer_id = producer_id
        self._leader_epoch = partition.leader_epoch
        self._producers = partition.log.producers
        self._token = self._producers.begin_verification(producer_id, producer_epoch)

    def check(self) -> None:
        """Raise an ApiError if the coordinator's answer does not count any more. This is so if the partition has got
        another leader, or a marker of the producer: then the transaction in the answer may have ended already.
        """
        partition = self._partition
        if partition.leader_epoch != self._leader_epoch or partition.log.producers is not self._producers:
            raise NotLeaderOrFollower(f"the leader epoch of {partition.topic}-{partition.index} has ended")
        if not self._producers.is_verification_valid(self._producer_id, self._token):
            raise ApiError("the transaction has ended in the meantime", ErrorCode.INVALID_TXN_STATE)

    def end(self) -> None:
        """Forget the question. It must be called exactly once."""
        self._producers.end_verification(self._producer_id, self._token)


def has_open_transaction(partition: "Partition", producer_id: int, producer_epoch: int) -> bool:
    """Return whether the partition has records of an open transaction of this producer and epoch. Then its coordinator
    knows that the partition belongs to the transaction.
    """
    entry = partition.log.producers.entries.get(producer_id)
    return entry is not None and entry.transaction_start >= 0 and entry.epoch == producer_epoch
