"""`tidelog cluster status` and `brokers`: what they show for a given state."""

import json
from typing import Any

import pytest

from tidelog.cli import cluster_status
from tidelog.cli.cluster_state import ClusterBroker, ClusterState, Move, PartitionReplicas
from tidelog.cli.cluster_status import (
    bar,
    brokers_table,
    is_degraded,
    print_status,
    state_json,
    state_words,
    summary_text,
    troubles_of,
)

BROKERS = [ClusterBroker(1, "h1", 9092, "a", False), ClusterBroker(2, "::1", 9092, None, False)]


def state(*partitions: PartitionReplicas, brokers: "list[ClusterBroker] | None" = None) -> ClusterState:
    return ClusterState("id", 1, BROKERS if brokers is None else brokers, list(partitions))


def part(number: int = 0, leader: int = 1, isr: tuple[int, ...] = (1, 2), **facts: Any) -> PartitionReplicas:
    return PartitionReplicas("orders", number, leader, facts.pop("replicas", [1, 2]), list(isr), **facts)


HEALTHY = part()
OTHER_LEADER = part(leader=2)
BEHIND = part(isr=(1,))
UNDER_MIN = part(isr=(1,), min_isr=2)
OFFLINE = part(leader=-1, isr=(), eligible=[2], min_isr=2)
MOVING = part(replicas=[1, 2, 3], move=Move([3], []))


@pytest.mark.parametrize(
    ("partition", "kinds", "degraded"),
    [
        (HEALTHY, [], False),
        (OTHER_LEADER, ["not_preferred_leader"], False),
        (BEHIND, ["under_replicated"], True),
        (UNDER_MIN, ["under_min_isr", "under_replicated"], True),
        (OFFLINE, ["offline"], True),
        (MOVING, [], False),
    ],
)
def test_the_trouble_of_a_partition(partition: PartitionReplicas, kinds: list[str], degraded: bool) -> None:
    assert [trouble.key for trouble in troubles_of(partition)] == kinds
    assert is_degraded(state(partition, brokers=[*BROKERS, ClusterBroker(3, "h3", 1, None, False)])) == degraded


def test_words_of_a_partition() -> None:
    assert state_words(UNDER_MIN) == ["under min ISR", "under-replicated"]
    assert state_words(OTHER_LEADER) == []
    assert state_words(MOVING) == ["moving"]


def test_fenced_and_missing_brokers_are_trouble() -> None:
    assert is_degraded(state(HEALTHY, brokers=[*BROKERS, ClusterBroker(3, "h3", 1, None, True)]))
    assert state(part(replicas=[1, 7])).missing == [7]
    assert is_degraded(state(part(replicas=[1, 7], isr=(1, 7))))


def test_the_whole_picture(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(
        state(HEALTHY, OTHER_LEADER, UNDER_MIN._replace(partition=2), OFFLINE._replace(partition=3)),
        all_partitions=False,
    )
    assert capsys.readouterr().out.splitlines() == [
        "Cluster id  controller 1  2 brokers  1 topic  4 partitions",
        "BROKER  RACK  ADDRESS     STATE               LEADERS  REPLICAS  BEHIND",
        "     1  a     h1:9092     active, controller        2         4       1",
        "     2        [::1]:9092  active                    1         4       2",
        "",
        "Partitions: 1 offline, 2 under min ISR, 2 under-replicated, 1 led by another.",
        "",
        "TOPIC   PARTITION  STATE                            LEADER  REPLICAS  ISR  ELR",
        "orders          3  offline                            none  1, 2           2",
        "orders          2  under min ISR, under-replicated       1  1, 2      1",
    ]
    print_status(state(OTHER_LEADER), all_partitions=True)
    assert "orders          0  led by another       2  1, 2      1, 2" in capsys.readouterr().out


def test_a_healthy_cluster_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(state(HEALTHY), all_partitions=False)
    assert capsys.readouterr().out.endswith("\nEvery partition has a leader, and all replicas are in sync.\n")


def test_topics_that_cannot_be_described_are_no_kind_of_partitions() -> None:
    none = {trouble.key: 0 for trouble in cluster_status.TROUBLES}
    assert summary_text(none, 0, 1) == "The partitions of 1 topic are not known."
    assert summary_text(none | {"offline": 2}, 1, 3) == (
        "Partitions: 2 offline, 1 moving. The partitions of 3 topics are not known."
    )


def test_many_partitions_are_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    many = [BEHIND._replace(partition=number) for number in range(25)]
    print_status(state(*many), all_partitions=False)
    assert capsys.readouterr().out.endswith("... and 5 more partitions; --all lists them\n")
    print_status(state(*many), all_partitions=True)
    assert "more partitions" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "largest", "utf8", "text"),
    [
        (0, 4, True, ""),
        (4, 4, True, "█" * 12),
        (1, 96, True, "▏"),
        (1, 5, True, "█" * 2 + "▍"),
        (2, 4, False, "#" * 6),
    ],
)
def test_bars(number: int, largest: int, utf8: bool, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_status, "stdout_is_utf8", lambda: utf8)
    assert bar(number, largest) == text


def test_bars_stand_beside_their_numbers() -> None:
    table = brokers_table(state(HEALTHY), with_bars=True)
    assert [column.title for column in table.columns] == [
        "Broker", "Rack", "Address", "State", "Leaders", "", "Replicas", "", "Behind",
    ]  # fmt: skip
    assert table.rows[0][4:8] == ["1", "█" * 12, "1", "█" * 12]


def test_json_has_everything() -> None:
    document = json.loads(json.dumps(state_json(state(OFFLINE, MOVING._replace(partition=1)))))
    assert (document["healthy"], document["controller"], document["partitions"]) == (False, 1, 2)
    assert document["brokers"][0] == {
        "broker": 1,
        "rack": "a",
        "host": "h1",
        "port": 9092,
        "fenced": False,
        "controller": True,
        "leaders": 1,
        "replicas": 2,
        "replicas_not_in_sync": 1,
    }
    assert document["offline"] == [
        {
            "topic": "orders",
            "partition": 0,
            "leader": -1,
            "replicas": [1, 2],
            "isr": [],
            "eligible_leader_replicas": [2],
            "offline_replicas": [],
            "min_insync_replicas": 2,
        }
    ]
    assert document["moving"][0]["adding"] == [3]
    assert document["missing_brokers"] == [3]
