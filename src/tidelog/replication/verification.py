"""Questions to a transaction's coordinator (KIP-890). Before an append, check whether the answer is still valid."""

import logging
from typing import TYPE_CHECKING

from tidelog.wire.control_batches import marker_batch
from tidelog.wire.errors import ApiError, ErrorCode, NotLeaderOrFollower

if TYPE_CHECKING:
    from tidelog.replication.partition import Partition

logger = logging.getLogger("tidelog.replication")


class Verification:
    """One question about a producer's transaction in a partition. Create this object before the coordinator is asked:
    `check` notices only what happens after the object was created.

    The constructor raises InvalidProducerEpoch if the partition has a higher epoch of the producer.
    """

    __slots__ = ("_leader_epoch", "_partition", "_producer_epoch", "_producer_id", "_producers", "_token")

    def __init__(self, partition: "Partition", producer_id: int, producer_epoch: int) -> None:
        self._partition = partition
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._leader_epoch = partition.leader_epoch
        self._producers = partition.log.producers
        self._token = self._producers.begin_verification(producer_id, producer_epoch)

    def check(self) -> None:
        """Raise an ApiError if the coordinator's answer is no longer valid. It becomes invalid when the leader epoch
        ends or a marker of the producer arrives, since the transaction in the answer may then have ended.
        """
        partition = self._partition
        if partition.leader_epoch != self._leader_epoch or partition.log.producers is not self._producers:
            raise NotLeaderOrFollower(f"the leader epoch of {partition.topic}-{partition.index} has ended")
        if not self._producers.is_verification_valid(self._producer_id, self._token):
            raise ApiError("the transaction has ended in the meantime", ErrorCode.INVALID_TXN_STATE)

    def marker_of_lost_end(self, now_ms: int) -> bytearray | None:
        """Return the marker that must be appended before the transaction's records; None if no marker is needed. See
        the function of the same name.
        """
        return marker_of_lost_end(self._partition, self._producer_id, self._producer_epoch, now_ms)

    def end(self) -> None:
        """Forget the question. It must be called exactly once."""
        self._producers.end_verification(self._producer_id, self._token)


def has_open_transaction(partition: "Partition", producer_id: int, producer_epoch: int) -> bool:
    """Return whether the partition has records of an open transaction of this producer and epoch. If it has, the
    transaction's coordinator knows that the partition belongs to the transaction.
    """
    entry = partition.log.producers.entries.get(producer_id)
    return entry is not None and entry.transaction_start >= 0 and entry.epoch == producer_epoch


def marker_of_lost_end(partition: "Partition", producer_id: int, producer_epoch: int, now_ms: int) -> bytearray | None:
    """Return an abort marker if the partition has an open transaction of an earlier epoch of this producer.

    Call this function when the coordinator has confirmed a transaction of `producer_epoch`. Such a confirmation shows
    that the earlier transaction has ended. So its marker was lost here, in a power cut or an unclean election, and
    nobody knows whether the earlier transaction was committed. Without a marker, its records would become visible when
    the new transaction is committed, even if the earlier one was aborted.
    """
    entry = partition.log.producers.entries.get(producer_id)
    if entry is None or entry.transaction_start < 0 or entry.epoch >= producer_epoch:
        return None
    logger.warning(
        "transaction aborted, its marker was lost partition=%s-%d producer_id=%d epoch=%d first_offset=%d",
        partition.topic,
        partition.index,
        producer_id,
        entry.epoch,
        entry.transaction_start,
    )
    coordinator_epoch = max(entry.coordinator_epoch, 0)
    return marker_batch(producer_id, producer_epoch, coordinator_epoch, is_commit=False, timestamp=now_ms)
