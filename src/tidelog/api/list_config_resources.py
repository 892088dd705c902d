"""ListConfigResources (key 74), v0-1: list the resources that have settings. v0 lists only subscriptions to client
metrics; v1 lists resources of the types that the request names, or of all types (KIP-1142).
"""

from collections.abc import Iterable

from tidelog.api.services import RequestContext, Services
from tidelog.metadata.alterations import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    LOGGER_RESOURCE,
    TOPIC_RESOURCE,
)
from tidelog.metadata.image import MetadataImage
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

ALL_TYPES = (GROUP_RESOURCE, CLIENT_METRICS_RESOURCE, LOGGER_RESOURCE, BROKER_RESOURCE, TOPIC_RESOURCE)
TYPES_SINCE = 1
"""The first version whose requests name the resource types to list."""


def handle(
    services: Services, context: RequestContext, request: ListConfigResourcesRequest
) -> Steps[ListConfigResourcesResponse]:
    requested_types: dict[int, None] = {}
    for resource_type in request.resource_types:
        requested_types[resource_type] = None
        yield
    if context.api_version < TYPES_SINCE:
        requested_types = {CLIENT_METRICS_RESOURCE: None}
    if not all(resource_type in ALL_TYPES for resource_type in requested_types):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = services.metadata.image
    response = ListConfigResourcesResponse()
    for resource_type in ALL_TYPES:
        if not requested_types or resource_type in requested_types:
            for name in _names(image, resource_type):
                response.config_resources.append(ConfigResource(resource_name=name, resource_type=resource_type))
                yield
    return response


def _names(image: MetadataImage, resource_type: int) -> Iterable[str]:
    if resource_type == TOPIC_RESOURCE:
        return image.topics
    if resource_type == GROUP_RESOURCE:
        return image.group_configs
    if resource_type == CLIENT_METRICS_RESOURCE:
        return image.client_metrics_configs
    return map(str, image.brokers)
