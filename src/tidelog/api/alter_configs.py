"""AlterConfigs (key 33), v0-2: a resource's own settings become those of the request, the others their defaults."""

from collections.abc import Sequence

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
    results = await altered(services, alterations, validate_only=request.validate_only)
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


async def altered(
    services: Services, alterations: Sequence[Alteration], *, validate_only: bool
) -> list[AlterationResult]:
    """What became of each; when the metadata cannot be changed at all, that for each."""
    try:
        return await services.controller.alter_configs(alterations, validate_only=validate_only)
    except ApiError as error:
        return [AlterationResult(*alteration[:2], error.code, error.message) for alteration in alterations]
