"""UpdateFeatures. The expectations are Kafka 4.3.1's answers, except that the level of group.version never changes."""

from types import SimpleNamespace
from typing import Any

import pytest

from metadata_harness.controlled import Node, with_node
from tidelog.api.features import features
from tidelog.wire.messages.update_features import FeatureUpdateKey

UPGRADE, SAFE, UNSAFE = 1, 2, 3
REFUSED = 95


async def asked(node: Node, version: int, *updates: tuple[str, int, int], consumer_groups: bool = True) -> Any:
    node.services.groups = SimpleNamespace(serves_consumer_groups=consumer_groups)  # type: ignore[assignment]
    keys = [
        FeatureUpdateKey(feature=f, max_version_level=level, upgrade_type=kind if version else UPGRADE)
        for f, level, kind in updates
    ]
    return await node.call("UpdateFeatures", version, feature_updates=keys)


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("kind", [UPGRADE, SAFE, UNSAFE])
def test_the_level_in_force_may_be_asked_for(version: int, kind: int) -> None:
    async def scenario(node: Node) -> None:
        answer = await asked(node, version, ("group.version", 1, kind), ("group.version", 1, kind))
        assert (answer.error_code, answer.error_message) == (0, None)
        results = [(r.feature, r.error_code, r.error_message) for r in answer.results]
        assert results == ([("group.version", 0, "NONE")] * 2 if version < 2 else [])

    with_node(scenario)


@pytest.mark.parametrize(
    ("update", "word"),
    [
        (("group.version", 2, UPGRADE), "0 to 1"),
        (("group.version", -1, UNSAFE), "negative"),
        (("group.version", 0, UPGRADE), "downgrade"),
        (("group.version", 0, SAFE), "group.coordinator.rebalance.protocols"),
        (("group.version", 1, 9), "upgrade type"),
        (("no.such", 1, 0), "upgrade type"),
        (("no.such", 1, UPGRADE), "no feature no.such"),
    ],
)
def test_one_refusal_is_all_of_the_answer(update: tuple[str, int, int], word: str) -> None:
    async def scenario(node: Node) -> None:
        answer = await asked(node, 1, ("group.version", 1, UPGRADE), update)
        assert (answer.error_code, answer.results) == (REFUSED, [])
        assert word in answer.error_message

    with_node(scenario)


@pytest.mark.parametrize("version", [1, 2])
def test_the_level_of_transactions_changes(version: int) -> None:
    async def scenario(node: Node) -> None:
        for level, kind in ((1, SAFE), (0, UNSAFE), (1, UPGRADE), (2, UPGRADE)):
            assert (await asked(node, version, ("transaction.version", level, kind))).error_code == 0
            assert features(node.services)["transaction.version"] == (0, 2, level)
        for level, kind in ((1, UPGRADE), (3, UPGRADE)):
            answer = await asked(node, version, ("transaction.version", level, kind))
            assert answer.error_code == REFUSED
        assert features(node.services)["transaction.version"] == (0, 2, 2)

    with_node(scenario)


def test_a_downgrade_to_a_higher_level_is_refused() -> None:
    async def scenario(node: Node) -> None:
        assert (await asked(node, 2, ("transaction.version", 0, SAFE))).error_code == 0
        answer = await asked(node, 2, ("transaction.version", 1, SAFE))
        assert answer.error_code == REFUSED
        assert "would be an upgrade" in answer.error_message

    with_node(scenario)


def test_before_the_broker_is_registered_no_setting_is_blamed() -> None:
    async def scenario(node: Node) -> None:
        node.services.config = SimpleNamespace(node_id=9)  # type: ignore[assignment]
        answer = await asked(node, 2, ("transaction.version", 1, SAFE))
        assert answer.error_code == REFUSED
        assert "this broker is not registered yet" in answer.error_message

    with_node(scenario)


def test_a_feature_that_is_switched_off_is_none() -> None:
    async def scenario(node: Node) -> None:
        answer = await asked(node, 2, ("group.version", 1, UPGRADE), consumer_groups=False)
        assert answer.error_code == REFUSED

    with_node(scenario)
