"""AlterConfigs (key 33), v0-2: a resource's own settings become those of the request, the others their defaults."""

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.alterations import Alteration, AlterationResult, Change, Operation
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(services: Services, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    alterations = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            [Change(config.name, Operation.SET, config.value) for config in resource.configs],
            replace=True,
        )
        for resource in request.resources
    ]
    try:
        results = await services.controller.alter_configs(alterations, validate_only=request.validate_only)
    except ApiError as error:
        results = [AlterationResult(*alteration[:2], error.code, error.message) for alteration in alterations]
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=result.error,
                error_message=result.message,
                resource_type=result.resource_type,
                resource_name=result.resource_name,
            )
            for result in results
        ]
    )
