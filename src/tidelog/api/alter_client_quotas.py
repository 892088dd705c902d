"""AlterClientQuotas (key 49), v0-1 (KIP-546): set and remove quotas of users, client ids and IP addresses."""

from typing import TYPE_CHECKING

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.link import AlterQuotas
from tidelog.metadata.quota_alterations import QuotaAlteration, QuotaChange, QuotaResult
from tidelog.model.steps import Steps
from tidelog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    ResponseEntryData,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome


def handle(
    services: Services, context: RequestContext, request: AlterClientQuotasRequest
) -> "Steps[Outcome[AlterClientQuotasResponse]]":
    alterations = []
    for entry in request.entries:
        parts: dict[str, str | None] = {}
        for part in entry.entity:
            parts[part.entity_type] = part.entity_name  # if a type is repeated, the last of its names is used
            yield
        changes = []
        for op in entry.ops:
            changes.append(QuotaChange(op.key, None if op.remove else op.value))
            yield
        alterations.append(QuotaAlteration(tuple(parts.items()), changes))
        yield
    return _alter(services, request, alterations)


async def _alter(
    services: Services, request: AlterClientQuotasRequest, alterations: list[QuotaAlteration]
) -> Steps[AlterClientQuotasResponse]:
    answer = await services.controller.alter_quotas(AlterQuotas(alterations, request.validate_only))
    results = answer.value
    if results is None:
        results = [QuotaResult(alteration.entity, answer.error, answer.message) for alteration in alterations]
    return _response(results)


def _response(results: list[QuotaResult]) -> Steps[AlterClientQuotasResponse]:
    response = AlterClientQuotasResponse()
    for result in results:
        response.entries.append(
            ResponseEntryData(
                error_code=result.error,
                error_message=result.message,
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in result.entity],
            )
        )
        yield
    return response
