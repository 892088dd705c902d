"""Wait for the ends of transactions, and abort them as their coordinators do."""

import time
from collections.abc import Iterable

from tidelog.client.blocking import Client
from tidelog.client.cluster import Address
from tidelog.client.coordinators import TRANSACTIONS, cached_coordinators
from tidelog.client.operations import LATEST, READ_COMMITTED, Ask, Operation, Request
from tidelog.client.transactional_writes import TransactionalProducer
from tidelog.client.transactions import Transaction
from tidelog.model.ids import TopicPartition
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def stable_ends(bootstrap: str, topic: str, limit_s: float = 30.0) -> dict[TopicPartition, int]:
    """Return the end of each partition as soon as no transaction is open in it. A coordinator answers the request to
    end a transaction before it writes the markers.

    Raises AssertionError if a transaction is still open after `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    with Client(bootstrap) as client:
        partitions = [TopicPartition(topic, number) for number in client.topics([topic])[topic].leaders]
        while True:
            stable = client.list_offsets(dict.fromkeys(partitions, LATEST), READ_COMMITTED)
            ends = client.list_offsets(dict.fromkeys(partitions, LATEST))
            is_open = [tp for tp in partitions if stable[tp].offset != ends[tp].offset]
            if not is_open:
                return {tp: ends[tp].offset for tp in partitions}
            assert time.monotonic() < deadline, f"{is_open[0]}: a transaction is open"
            time.sleep(0.02)


def time_out(bootstrap: str, producers: Iterable[TransactionalProducer], limit_s: float = 30.0) -> None:
    """Abort the transactions as their coordinator does after their timeouts: InitProducerId, sent once, does the same.

    Raises AssertionError if a transaction is not aborted after `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    with Client(bootstrap) as client:
        for producer in producers:
            client._run(_fence_once(client, producer.transactional_id))
            while True:
                state = client.describe_transactions([producer.transactional_id])[producer.transactional_id]
                if isinstance(state, Transaction) and state.state == "CompleteAbort":
                    break
                assert time.monotonic() < deadline, f"{producer.transactional_id} is not aborted: {state}"
                time.sleep(0.02)


def _fence_once(client: Client, transactional_id: str) -> Operation[None]:
    address = (yield from cached_coordinators(client.cluster, [transactional_id], TRANSACTIONS))[transactional_id]
    assert isinstance(address, Address)
    answers = yield Ask([Request(address, InitProducerIdRequest(transactional_id, 60_000))])
    assert isinstance(answers, list)
    assert isinstance(answers[0], InitProducerIdResponse), answers
