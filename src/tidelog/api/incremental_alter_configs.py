"""IncrementalAlterConfigs (key 44), v0-1 (KIP-339): set, delete, append to and subtract from single settings."""

from typing import TYPE_CHECKING

from tidelog.api.alter_configs import alter_resources
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
    logger_results = yield from alter_loggers(alterations, services.config.node_id, validate_only=request.validate_only)
    return _alter(services, request, alterations, logger_results)


async def _alter(
    services: Services,
    request: IncrementalAlterConfigsRequest,
    alterations: list[Alteration],
    logger_results: dict[int, AlterationResult],
) -> Steps[IncrementalAlterConfigsResponse]:
    """Let the controller make all alterations except those of loggers. `logger_results` contains the results of the
    loggers, by position in `alterations`.
    """
    if not logger_results:
        return _response(await alter_resources(services, alterations, validate_only=request.validate_only))
    other_alterations = [
        alteration for position, alteration in enumerate(alterations) if position not in logger_results
    ]
    other_results = iter(
        await alter_resources(services, other_alterations, validate_only=request.validate_only)
        if other_alterations
        else ()
    )
    return _response(
        [
            logger_results[position] if position in logger_results else next(other_results)
            for position in range(len(alterations))
        ]
    )


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
