"""ListConfigResources (key 74), v0-1: what has settings. v0 was subscriptions to clients' metrics alone (KIP-1142)."""

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

EVERY_KIND = (GROUP_RESOURCE, CLIENT_METRICS_RESOURCE, LOGGER_RESOURCE, BROKER_RESOURCE, TOPIC_RESOURCE)
KINDS_SINCE = 1
"""The first version in which the client says which kinds it wants."""


def handle(
    services: Services, context: RequestContext, request: ListConfigResourcesRequest
) -> Steps[ListConfigResourcesResponse]:
    asked: dict[int, None] = {}
    for kind in request.resource_types:
        asked[kind] = None
        yield
    if context.api_version < KINDS_SINCE:
        asked = {CLIENT_METRICS_RESOURCE: None}
    if not all(kind in EVERY_KIND for kind in asked):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = services.metadata.image
    response = ListConfigResourcesResponse()
    for kind in EVERY_KIND:
        if not asked or kind in asked:
            for name in _names(image, kind):
                response.config_resources.append(ConfigResource(resource_name=name, resource_type=kind))
                yield
    return response


def _names(image: MetadataImage, kind: int) -> Iterable[str]:
    if kind == TOPIC_RESOURCE:
        return image.topics
    if kind == GROUP_RESOURCE:
        return image.group_configs
    if kind == CLIENT_METRICS_RESOURCE:
        return image.client_metrics_configs
    return map(str, image.brokers)
