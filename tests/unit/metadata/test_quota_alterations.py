"""Decisions about quotas. Error codes are Kafka 4.3.1's answers, except for our own bounds."""

from typing import Any

import pytest

from metadata_harness.builders import image, settings, topic, topic_id
from tidelog.metadata import controller, quota_alterations
from tidelog.metadata.controller import JournalDecision, MorePartitions, NewTopic, TopicChoice
from tidelog.metadata.image import ImageBuilder, MetadataImage
from tidelog.metadata.quota_alterations import QuotaAlteration, QuotaChange, QuotaResult
from tidelog.metadata.records import ClientQuotaChanged
from tidelog.model.steps import run_all
from tidelog.wire.errors import ErrorCode

C = (("client-id", "c"),)
U = (("user", None),)


def alter(before: MetadataImage, *alterations: QuotaAlteration, **options: Any) -> JournalDecision[list[QuotaResult]]:
    return run_all(quota_alterations.alter_quotas(before, alterations, **options))


def on(entity: Any, **changes: float | None) -> QuotaAlteration:
    return QuotaAlteration(entity, [QuotaChange(key, value) for key, value in changes.items()])


def cluster() -> MetadataImage:
    return image(topic("a", 1), ClientQuotaChanged(C, "producer_byte_rate", 1000.0))


def test_only_what_changes_is_recorded() -> None:
    decision = alter(
        cluster(), on(C, producer_byte_rate=1000.0, consumer_byte_rate=5.0), on(U, request_percentage=None)
    )
    assert decision.records == [ClientQuotaChanged(C, "consumer_byte_rate", 5.0)]
    assert decision.reply == [QuotaResult(C), QuotaResult(U)]


def test_the_last_quota_takes_the_entity_with_it() -> None:
    before = cluster()
    after = ImageBuilder(before).apply(alter(before, on(C, producer_byte_rate=None)).records).build()
    assert (after.client_quotas, bool(before.client_quotas)) == ({}, True)


def test_each_entity_is_changed_whole_or_not_at_all() -> None:
    decision = alter(cluster(), on(C, consumer_byte_rate=5.0, nope=1.0), on(U, producer_byte_rate=5.0))
    assert decision.records == [ClientQuotaChanged(U, "producer_byte_rate", 5.0)]
    assert [result.error for result in decision.reply] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]


def test_only_validated() -> None:
    decision = alter(cluster(), on(C, producer_byte_rate=5.0), validate_only=True)
    assert (decision.records, decision.reply) == ([], [QuotaResult(C)])


def test_the_first_entry_of_a_repeated_entity_is_executed_and_its_result_is_an_error() -> None:
    other_order = (("user", "u"), ("client-id", "c"))
    one = (("client-id", "c"), ("user", "u"))
    decision = alter(
        cluster(),
        on(one, producer_byte_rate=5.0),
        on(U, producer_byte_rate=1.0),
        on(other_order, producer_byte_rate=6.0),
    )
    assert decision.records == [
        ClientQuotaChanged(one, "producer_byte_rate", 5.0), ClientQuotaChanged(U, "producer_byte_rate", 1.0),
    ]  # fmt: skip
    assert [(r.entity, r.error) for r in decision.reply] == [(one, ErrorCode.INVALID_REQUEST), (U, ErrorCode.NONE)]


def test_an_invalid_first_entry_of_a_repeated_entity_changes_nothing() -> None:
    decision = alter(cluster(), on(C, nope=1.0), on(C, producer_byte_rate=5.0))
    assert decision.records == []
    assert [(r.error, r.message) for r in decision.reply] == [
        (ErrorCode.INVALID_REQUEST, quota_alterations.REPEATED_ENTITY)
    ]


def test_a_key_that_comes_twice() -> None:
    twice = QuotaAlteration(C, [QuotaChange("producer_byte_rate", 5.0), QuotaChange("producer_byte_rate", None)])
    assert [r.error for r in alter(cluster(), twice).reply] == [ErrorCode.INVALID_REQUEST]


def test_an_entity_is_changed_in_a_bounded_number_of_quotas() -> None:
    changes = [QuotaChange("producer_byte_rate", 5.0)] * (quota_alterations.CHANGES_MAX + 1)
    (result,) = alter(cluster(), QuotaAlteration(C, changes)).reply
    assert result.error == ErrorCode.INVALID_REQUEST
    assert str(quota_alterations.CHANGES_MAX) in str(result.message)


def test_how_many_may_have_quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_alterations, "ENTITIES_MAX", 3)
    wanted = [on((("client-id", f"{n}"),), producer_byte_rate=5.0) for n in range(4)]
    decision = alter(cluster(), *wanted, on(C, producer_byte_rate=7.0))
    assert [r.error for r in decision.reply] == [0, 0, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION, 0]
    assert len(decision.records) == 3


def test_partitions_are_asked_for_before_they_are_made_or_deleted() -> None:
    """What fails anyway is not counted; each topic is let through or refused alone."""
    left = [5]

    def reserve(count: int) -> bool:
        left[0] -= count
        return left[0] >= 0

    before = cluster()
    wanted = [NewTopic("a", 1), NewTopic("b", 4), NewTopic("c", 4), NewTopic("d", 1)]
    made = run_all(controller.create_topics(before, wanted, settings(), lambda: topic_id(9), reserve=reserve))
    assert [(r.name, r.error) for r in made.reply] == [
        ("a", ErrorCode.TOPIC_ALREADY_EXISTS), ("b", 0),
        ("c", ErrorCode.THROTTLING_QUOTA_EXCEEDED), ("d", ErrorCode.THROTTLING_QUOTA_EXCEEDED),
    ]  # fmt: skip
    assert [record.name for record in made.records] == ["b"]  # type: ignore[union-attr]
    gone = run_all(controller.delete_topics(before, [TopicChoice("a"), TopicChoice("no")], reserve=lambda count: False))
    assert {r.error for r in gone.reply} == {ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert gone.records == []
    more = run_all(controller.create_partitions(before, [MorePartitions("a", 3)], reserve=lambda count: count < 2))
    assert [r.error for r in more.reply] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert more.records == []
