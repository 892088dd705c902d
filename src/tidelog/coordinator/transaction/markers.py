"""The work that leaders of partitions do for a coordinator: write the markers that end a transaction."""

from typing import NamedTuple

from tidelog.coordinator.transaction.records import Partition


class MarkersToWrite(NamedTuple):
    """The end of one transaction, to be written as a control record into each of its partitions (WriteTxnMarkers)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    """With transaction version 2, or if the producer was fenced, this is one more than the epoch of the transaction's
    records. Otherwise it is the epoch of these records."""
    is_commit: bool
    partitions: tuple[Partition, ...]
    version: int
    """The transaction version with which the transaction ended: V2, or 0 for every older version. See `V2` in
    records.py."""
