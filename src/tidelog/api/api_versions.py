"""ApiVersions (key 18), v0-4. v3: flexible, client software name (KIP-511); v4: features with minimum 0 (KIP-1022).

The answer to a version that is not known is in v0, so that any client can read it.
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

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
SOFTWARE_LENGTH_MAX = 256
FROM_ZERO_VERSION = 4
"""From this version on, a feature may be supported from level 0."""

_RANGES = [
    ApiVersion(api_key=key, min_version=entry.advertised_min, max_version=entry.max_version)
    for key, entry in sorted(TABLE.items())
]


def handle(services: Services, context: RequestContext, request: ApiVersionsRequest | None) -> ApiVersionsResponse:
    """`request` is None when the client's version is not known."""
    if request is None:
        own = [r for r in _RANGES if r.api_key == API_VERSIONS_KEY]
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)
    names = (request.client_software_name, request.client_software_version)
    if context.api_version >= 3 and not all(map(_sound, names)):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    response = ApiVersionsResponse(api_keys=_RANGES)
    known = features(services)
    if known:
        response.finalized_features = [FinalizedFeatureKey(name, f.level, f.level) for name, f in known.items()]
        response.finalized_features_epoch = services.metadata.image.position
        if context.api_version >= FROM_ZERO_VERSION:
            response.supported_features = [SupportedFeatureKey(name, f.lowest, f.highest) for name, f in known.items()]
    return response


def _sound(text: str) -> bool:
    return len(text) <= SOFTWARE_LENGTH_MAX and _SOFTWARE.fullmatch(text) is not None
