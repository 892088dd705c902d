"""ListGroups (key 16), v0-5. v4: states, and a filter on them (KIP-518); v5: types, and a filter on them (KIP-848)."""

from tidelog.api.services import RequestContext, Services
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

CLASSIC = "classic"


def handle(services: Services, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    states = {name.lower() for name in request.states_filter}
    if request.types_filter and CLASSIC not in (name.lower() for name in request.types_filter):
        return ListGroupsResponse()
    try:
        groups = [
            ListedGroup(group.group_id, group.protocol_type, group.state.value, CLASSIC)
            for group in services.groups.listing()
            if not states or group.state.value.lower() in states
        ]
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(groups=groups)
