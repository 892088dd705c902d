"""Tidelog's answers equal the recorded ones, except for the differences that a rule allows. Every rule is needed."""

import pytest

from . import brokers, report, rules
from .brokers import Cluster
from .command import compare, of_nodes


def test_tidelog_answers_as_recorded() -> None:
    allowed = rules.load()
    with brokers.tidelog() as address:
        result = compare(of_nodes(1), Cluster((address,)), allowed)
    print(report.summary_text(result.runs, result.tally, len(result.differences), result.seconds))
    assert report.differences_text(result.differences) == ""
    assert [str(rule) for rule in report.unused(allowed, result.tally)] == []


def test_a_cluster_answers_as_recorded() -> None:
    allowed = rules.load_for_cluster()
    conversations = of_nodes(brokers.NODES)
    with brokers.tidelog_cluster() as cluster:
        result = compare(conversations, cluster, allowed)
    print(report.summary_text(result.runs, result.tally, len(result.differences), result.seconds))
    assert report.differences_text(result.differences) == ""
    assert [
        str(rule) for rule in report.unused(allowed, result.tally, of_cluster=[c.name for c in conversations])
    ] == []


def test_transactions_of_a_cluster_are_answered_as_recorded() -> None:
    """They were recorded with a cluster of their own, which had another id and other producer ids."""
    allowed = rules.load_for_cluster()
    conversations = of_nodes(brokers.NODES, "transactions")
    with brokers.tidelog_cluster("transactions") as cluster:
        result = compare(conversations, cluster, allowed)
    assert result.runs >= len(conversations) > 0
    assert report.differences_text(result.differences) == ""
    assert [
        str(rule) for rule in report.unused(allowed, result.tally, of_cluster=[c.name for c in conversations])
    ] == []


@pytest.mark.parametrize("setup", sorted(brokers.SETUPS))
def test_a_broker_with_other_settings_answers_as_recorded(setup: str) -> None:
    conversations = of_nodes(1, setup)
    with brokers.tidelog(setup=setup) as address:
        result = compare(conversations, Cluster((address,)), rules.load())
    assert result.runs >= len(conversations) > 0
    assert report.differences_text(result.differences) == ""


def test_false_times_in_headers_are_answered_as_recorded_without_full_validation() -> None:
    """By default a broker reads records only if it cannot trust the header of their batch. These headers are such."""
    conversations = [c for c in of_nodes(1) if c.file == "times"]
    with brokers.tidelog(brokers.SETTINGS) as address:
        result = compare(conversations, Cluster((address,)), rules.load())
    assert result.runs == len(conversations) > 10
    assert report.differences_text(result.differences) == ""
