"""Decisions of the controller about client quotas (KIP-546). Pure functions."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.records import ClientQuotaChanged, JournalRecord
from tidelog.model.steps import Steps
from tidelog.quotas.entities import CLIENT_ID, IP, USER, Entity, check_quota, entity_of
from tidelog.wire.errors import ApiError, ErrorCode

ENTITIES_MAX = 10_000
"""Maximum number of entities with quotas in a cluster. Every DescribeClientQuotas request reads all of them."""

CHANGES_MAX = 1000
"""Maximum number of changes of one entity in a request. There are fewer quota keys than this, so a request with more
changes repeats keys or contains unknown keys."""

REPEATED_ENTITY = "the request has several entries for this entity: only the first was executed, if it was valid"

EntityParts = tuple[tuple[str, str | None], ...]
"""An entity in a request: (type, name) pairs. The name None means the default of the type."""


class QuotaChange(NamedTuple):
    key: str
    value: float | None
    """None removes the quota."""


class QuotaAlteration(NamedTuple):
    entity: EntityParts
    changes: Sequence[QuotaChange]


class QuotaResult(NamedTuple):
    entity: EntityParts
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def alter_quotas(
    image: MetadataImage, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> Steps[JournalDecision[list[QuotaResult]]]:
    """Alter quotas of entities. Each entry succeeds or fails on its own, with all of its changes.

    If several entries have the same entity, the first of them is executed, but the entity has only one result, which is
    INVALID_REQUEST (as in Kafka 4.3.1).
    """
    by_entity: dict[EntityParts, list[QuotaAlteration]] = {}
    for alteration in alterations:
        by_entity.setdefault(_canonical(alteration.entity), []).append(alteration)
        yield
    records: list[JournalRecord] = []
    results: list[QuotaResult] = []
    added_entities = 0
    for parts, same_entity in by_entity.items():
        yield
        try:
            entity_records, is_new = _alter(image, parts, same_entity[0].changes)
            if is_new and len(image.client_quotas) + added_entities >= ENTITIES_MAX:
                message = (
                    f"there can be at most {ENTITIES_MAX} users, client ids and addresses with quotas: "
                    "remove all quotas of another user, client id or address first"
                )
                raise ApiError(message, ErrorCode.POLICY_VIOLATION)
            added_entities += is_new
            records += entity_records
        except ApiError as error:
            result = QuotaResult(parts, error.code, error.message)
        else:
            result = QuotaResult(parts)
        results.append(
            result if len(same_entity) == 1 else QuotaResult(parts, ErrorCode.INVALID_REQUEST, REPEATED_ENTITY)
        )
    return JournalDecision([] if validate_only else records, results)


def _alter(
    image: MetadataImage, parts: EntityParts, changes: Sequence[QuotaChange]
) -> tuple[list[ClientQuotaChanged], bool]:
    """Return the records, and whether the entity gets its first quotas. Raises ApiError."""
    if len(changes) > CHANGES_MAX:
        raise ApiError(f"the request has more than {CHANGES_MAX} changes of this entity", ErrorCode.INVALID_REQUEST)
    if len({change.key: None for change in changes}) < len(changes):
        raise ApiError("the request has a key more than once for this entity", ErrorCode.INVALID_REQUEST)
    entity: Entity = entity_of(parts)
    before: Mapping[str, float] = image.client_quotas.get(entity, {})
    records = []
    for key, value in changes:
        if value is not None:
            check_quota(entity, key, value)
        if value != before.get(key):
            records.append(ClientQuotaChanged(entity, key, value))
    return records, bool(records) and not before


def _canonical(parts: EntityParts) -> EntityParts:
    """Return each type once, in the order that responses use. If a type occurs more than once, the name in its last
    occurrence is used.
    """
    names = dict(parts)
    ordered = [(kind, names.pop(kind)) for kind in (CLIENT_ID, USER, IP) if kind in names]
    return (*ordered, *names.items())
