"""The controller's decisions about client quotas (KIP-546). Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.records import ClientQuotaChanged, JournalRecord
from tidelog.model.steps import Steps
from tidelog.quotas.entities import CLIENT_ID, IP, USER, Entity, check_quota, entity_of
from tidelog.wire.errors import ApiError, ErrorCode

ENTITIES_MAX = 10_000
"""With quotas of their own, in a cluster: each is looked at by every DescribeClientQuotas."""

CHANGES_MAX = 1000
"""Of one entity by one request. It has fewer quotas: more changes name one again, or one that there is not."""

Parts = tuple[tuple[str, str | None], ...]
"""An entity as a client named it."""


class QuotaChange(NamedTuple):
    key: str
    value: float | None
    """None takes it away."""


class QuotaAlteration(NamedTuple):
    entity: Parts
    changes: Sequence[QuotaChange]


class QuotaResult(NamedTuple):
    entity: Parts
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def alter_quotas(
    image: MetadataImage, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> Steps[JournalDecision[list[QuotaResult]]]:
    """Each entity is changed as a whole or not at all, and succeeds or fails alone.

    One that comes more than once, or with a key more than once, is answered once and stays as it is.
    """
    by_entity: dict[Parts, list[QuotaAlteration]] = {}
    for alteration in alterations:
        by_entity.setdefault(_plain(alteration.entity), []).append(alteration)
        yield
    records: list[JournalRecord] = []
    results: list[QuotaResult] = []
    added = 0
    for parts, several in by_entity.items():
        yield
        try:
            if len(several) > 1:
                raise ApiError("the request has this entity more than once", ErrorCode.INVALID_REQUEST)
            changed, is_new = _alter(image, parts, several[0].changes)
            if is_new and len(image.client_quotas) + added >= ENTITIES_MAX:
                raise ApiError(f"{ENTITIES_MAX} users, clients and addresses have quotas", ErrorCode.POLICY_VIOLATION)
            added += is_new
            records += changed
        except ApiError as error:
            results.append(QuotaResult(parts, error.code, error.message))
        else:
            results.append(QuotaResult(parts))
    return JournalDecision([] if validate_only else records, results)


def _alter(image: MetadataImage, parts: Parts, changes: Sequence[QuotaChange]) -> tuple[list[ClientQuotaChanged], bool]:
    """The records, and whether the entity has no quotas yet. Raises ApiError."""
    if len(changes) > CHANGES_MAX:
        raise ApiError(f"a request changes at most {CHANGES_MAX} quotas of an entity", ErrorCode.INVALID_REQUEST)
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


def _plain(parts: Parts) -> Parts:
    """Each type once, the last name of it; in the order of answers."""
    last = dict(parts)
    known = [(kind, last.pop(kind)) for kind in (CLIENT_ID, USER, IP) if kind in last]
    return (*known, *last.items())
