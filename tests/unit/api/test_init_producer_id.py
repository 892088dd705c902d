"""InitProducerId without a transactional id. The expectations are Kafka 4.3.1's answers.

`test_transaction_requests.py` has the tests with a transactional id.
"""

from typing import Any

import pytest

from metadata_harness.controlled import Node, with_node
from tidelog.metadata.store import StoreUnavailable


@pytest.mark.parametrize("version", range(6))
def test_every_producer_gets_an_id_of_its_own(version: int) -> None:
    async def scenario(node: Node) -> None:
        for expected in range(3):
            answer = await node.call("InitProducerId", version, transactional_id=None, transaction_timeout_ms=60_000)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, expected, 0)
            assert answer.throttle_time_ms == 0

    with_node(scenario)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": None, "producer_id": 3}, 42),
        ({"transactional_id": None, "producer_epoch": 0}, 42),
        ({"transactional_id": "", "producer_id": 3}, 42),
        ({"transactional_id": "mine", "producer_id": 3}, 42),
    ],
)
def test_what_is_refused(fields: dict[str, Any], code: int) -> None:
    async def scenario(node: Node) -> None:
        answer = await node.call("InitProducerId", 5, transaction_timeout_ms=60_000, **fields)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)

    with_node(scenario)


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, 2), (-5, -7)])
def test_a_producer_that_names_its_old_id_gets_a_new_one(producer_id: int, epoch: int) -> None:
    async def scenario(node: Node) -> None:
        answer = await node.call(
            "InitProducerId", 5, transactional_id=None, producer_id=producer_id, producer_epoch=epoch
        )
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 0, 0)

    with_node(scenario)


def test_no_id_without_the_store() -> None:
    """Kafka gives this answer for every failure to allocate producer ids. Producers repeat the request."""

    async def scenario(node: Node) -> None:
        async def refuse(*args: object) -> None:
            raise StoreUnavailable("full")

        node.store.append = refuse  # type: ignore[assignment]
        answer = await node.call("InitProducerId", 5, transactional_id=None)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (14, -1, -1)

    with_node(scenario)
