"""IncrementalAlterConfigs (key 44), v0-1 (KIP-339): settings set, deleted, appended to, subtracted from."""

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.alterations import Alteration, AlterationResult, Change
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    alterations = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            [Change(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    try:
        results = await services.controller.alter_configs(alterations, validate_only=request.validate_only)
    except ApiError as error:
        results = [AlterationResult(*alteration[:2], error.code, error.message) for alteration in alterations]
    return IncrementalAlterConfigsResponse(
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
