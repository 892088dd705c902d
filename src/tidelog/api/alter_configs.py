"""AlterConfigs (key 33), v0-2: replace all settings of a resource. Settings that the request omits get their
defaults.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.alterations import Alteration, AlterationResult, Change, Operation
from tidelog.metadata.link import AlterConfigs
from tidelog.model.steps import Steps
from tidelog.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidelog.api.pending import Outcome


def handle(
    services: Services, context: RequestContext, request: AlterConfigsRequest
) -> "Steps[Outcome[AlterConfigsResponse]]":
    alterations = []
    for resource in request.resources:
        changes = []
        for config in resource.configs:
            changes.append(Change(config.name, Operation.SET, config.value))
            yield
        alterations.append(Alteration(resource.resource_type, resource.resource_name, changes, replace=True))
        yield
    return _alter(services, request, alterations)


async def _alter(
    services: Services, request: AlterConfigsRequest, alterations: list[Alteration]
) -> Steps[AlterConfigsResponse]:
    return _response(await alter_resources(services, alterations, validate_only=request.validate_only))


def _response(results: list[AlterationResult]) -> Steps[AlterConfigsResponse]:
    response = AlterConfigsResponse()
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


async def alter_resources(
    services: Services, alterations: Sequence[Alteration], *, validate_only: bool
) -> list[AlterationResult]:
    """Make the alterations and return their results. If the controller answers with an error, every result
    contains that error.
    """
    answer = await services.controller.alter_configs(AlterConfigs(alterations, services.config.node_id, validate_only))
    if answer.value is None:
        return [
            AlterationResult(each.resource_type, each.resource_name, answer.error, answer.message)
            for each in alterations
        ]
    return answer.value
