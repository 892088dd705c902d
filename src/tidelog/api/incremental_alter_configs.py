"""IncrementalAlterConfigs (key 44), v0-1 (KIP-339): settings set, deleted, appended to, subtracted from."""

from typing import TYPE_CHECKING

from tidelog.api.alter_configs import altered
from tidelog.api.alter_loggers import alter_loggers
from tidelog.api.services import RequestContext, Services
from tidelog.metadata.alterations import Alteration, AlterationResult, Change
from tidelog.model.steps import Steps
from tidelog.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome


def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> "Steps[Outcome[IncrementalAlterConfigsResponse]]":
    alterations = []
    for resource in request.resources:
        changes = []
        for config in resource.configs:
            changes.append(Change(config.name, config.config_operation, config.value))
            yield
        alterations.append(Alteration(resource.resource_type, resource.resource_name, changes))
        yield
    results = yield from alter_loggers(alterations, services.config.node_id, validate_only=request.validate_only)
    return _alter(services, request, alterations, results)


async def _alter(
    services: Services,
    request: IncrementalAlterConfigsRequest,
    alterations: list[Alteration],
    results: dict[int, AlterationResult],
) -> Steps[IncrementalAlterConfigsResponse]:
    """`results` has those that are about loggers, by place; the controller decides on the others."""
    if not results:
        return _response(await altered(services, alterations, validate_only=request.validate_only))
    others = [alteration for place, alteration in enumerate(alterations) if place not in results]
    decided = iter(await altered(services, others, validate_only=request.validate_only) if others else ())
    return _response([results[place] if place in results else next(decided) for place in range(len(alterations))])


def _response(results: list[AlterationResult]) -> Steps[IncrementalAlterConfigsResponse]:
    response = IncrementalAlterConfigsResponse()
    for result in results:
        response.responses.append(
            AlterConfigsResourceResponse(
                error_code=result.error,
                error_message=result.message,
                resource_type=result.resource_type,
                resource_name=result.resource_name,
            )
        )
        yield
    return response
