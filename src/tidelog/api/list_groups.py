"""ListGroups (key 16), v0-5. v4: states, and a filter on them (KIP-518); v5: types, and a filter on them (KIP-848)."""

from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(services: Services, context: RequestContext, request: ListGroupsRequest) -> Steps[ListGroupsResponse]:
    states = yield from _lowercase(request.states_filter)
    types = yield from _lowercase(request.types_filter)
    groups = []
    try:
        for group in services.groups.listing():
            state = group.state.value
            if (not states or state.lower() in states) and (not types or group.group_type in types):
                groups.append(ListedGroup(group.group_id, group.protocol_type, state, group.group_type))
            yield
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(groups=groups)


def _lowercase(names: list[str]) -> Steps[dict[str, None]]:
    lowercase: dict[str, None] = {}
    for name in names:
        lowercase[name.lower()] = None
        yield
    return lowercase
