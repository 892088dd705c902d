"""ApiVersions (key 18), v0-4. v3: flexible encoding (KIP-482), name and version of the client's software (KIP-511);
v4: features whose lowest level is 0 (KIP-1022).

The response to an unknown version of this API is encoded as v0, so that every client can decode it.
"""

import re

from tidelog.api.features import features
from tidelog.api.registry import API_VERSIONS_KEY, TABLE
from tidelog.api.services import RequestContext, Services
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
SOFTWARE_NAME_LENGTH_MAX = 256
"""Maximum length of the name of a client's software, and of the software's version, in characters."""
MIN_LEVEL_ZERO_SINCE = 4
"""First version whose response may contain supported features with the lowest level 0. All features of Tidelog have
this lowest level."""

_RANGES = [
    ApiVersion(api_key=key, min_version=entry.advertised_min, max_version=entry.max_version)
    for key, entry in sorted(TABLE.items())
]


def handle(services: Services, context: RequestContext, request: ApiVersionsRequest | None) -> ApiVersionsResponse:
    """`request` is None if this broker does not serve the request's version of ApiVersions."""
    if request is None:
        own_range = [r for r in _RANGES if r.api_key == API_VERSIONS_KEY]
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own_range)
    names = (request.client_software_name, request.client_software_version)
    if context.api_version >= 3 and not all(map(_is_valid_name, names)):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    response = ApiVersionsResponse(api_keys=_RANGES)
    current_features = features(services)
    if current_features:
        response.finalized_features = [
            FinalizedFeatureKey(name, f.level, f.level) for name, f in current_features.items()
        ]
        response.finalized_features_epoch = services.metadata.image.position
        if context.api_version >= MIN_LEVEL_ZERO_SINCE:
            response.supported_features = [
                SupportedFeatureKey(name, f.lowest, f.highest) for name, f in current_features.items()
            ]
    return response


def _is_valid_name(text: str) -> bool:
    return len(text) <= SOFTWARE_NAME_LENGTH_MAX and _SOFTWARE_NAME.fullmatch(text) is not None
