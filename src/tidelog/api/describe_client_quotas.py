"""DescribeClientQuotas (key 48), v0-1 (KIP-546): the quotas of users, client ids and IP addresses that match a
filter.
"""

from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.quotas.entities import Component, Filter
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)


def handle(
    services: Services, context: RequestContext, request: DescribeClientQuotasRequest
) -> Steps[DescribeClientQuotasResponse]:
    try:
        entity_filter = Filter(
            (Component(c.entity_type, c.match_type, c.match) for c in request.components), strict=request.strict
        )
    except ApiError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    response = DescribeClientQuotasResponse(entries=[])
    assert response.entries is not None
    for entity, values in services.metadata.image.client_quotas.items():
        if entity_filter.matches(entity):
            response.entries.append(
                EntryData(
                    entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    values=[ValueData(key=key, value=value) for key, value in values.items()],
                )
            )
        yield
    return response
