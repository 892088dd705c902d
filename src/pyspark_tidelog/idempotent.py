"""Producers with sequence numbers, and the producer ids of the at-least-once sink (KIP-98).

If the answer to a batch is lost, the batch is sent again. Because the batch contains a producer id and a sequence
number, it is appended only once. A task that Spark runs again still writes its rows again.
"""

import os
from collections.abc import Mapping

from tidelog.client.blocking import Client
from tidelog.model.ids import TopicPartition


class Producer:
    """A producer id, and the sequence number of the next record of each partition."""

    def __init__(self, producer_id: int, producer_epoch: int, *, is_transactional: bool = False) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self._is_transactional = is_transactional
        self._next_sequences: dict[TopicPartition, int] = {}

    def stamp(self, batches: Mapping[TopicPartition, bytearray]) -> list[TopicPartition]:
        """Write the producer's id and epoch, and the next sequence numbers, into the headers of the batches. Return the
        partitions to which the producer has not written before.
        """
        from pyspark_tidelog.outgoing import next_sequence, stamp

        new_partitions = [tp for tp in batches if tp not in self._next_sequences]
        for tp, batch in batches.items():
            sequence = self._next_sequences.get(tp, 0)
            records = stamp(
                batch, self.producer_id, self.producer_epoch, sequence, is_transactional=self._is_transactional
            )
            self._next_sequences[tp] = next_sequence(sequence, records)
        return new_partitions


class Producers:
    """The producers of one Python worker process, one for each cluster. A broker keeps the state of each producer id in
    memory for a day. To use few ids, all tasks of the process, which run one after the other, share these producers.
    """

    def __init__(self) -> None:
        self._process = -1
        self._by_cluster: dict[str, Producer] = {}

    def acquire(self, client: Client, bootstrap: str) -> Producer:
        """Return the producer for a task. Raises ApiError and ClientError if the cluster gives no producer id."""
        if self._process != os.getpid():  # in a process that was forked, the producers belong to the parent
            self._process, self._by_cluster = os.getpid(), {}
        producer = self._by_cluster.get(bootstrap)
        if producer is None:
            producer = self._by_cluster[bootstrap] = Producer(*client.init_producer_id())
        return producer

    def discard(self, bootstrap: str) -> None:
        """Forget the producer after a failure: nobody knows which of its sequence numbers the brokers have."""
        self._by_cluster.pop(bootstrap, None)


PRODUCERS = Producers()
