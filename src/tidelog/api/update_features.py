"""UpdateFeatures (key 57), v0-2 (KIP-584). v1: kinds of upgrade, validation only; v2: one error for all of them.

Levels follow from the software and its settings, so none changes: asking for the one in force succeeds, as in Kafka.
"""

from tidelog.api.features import Feature, features
from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
RESULTS_UNTIL = 1
"""The last version that answers for each feature."""
FINE = "NONE"
"""What Kafka has there, where one would expect null."""


def handle(
    services: Services, context: RequestContext, request: UpdateFeaturesRequest
) -> Steps[UpdateFeaturesResponse]:
    """Of a feature that the request names more than once the last level counts; each entry has its result."""
    known = features(services)
    asked: dict[str, FeatureUpdateKey] = {}
    for update in request.feature_updates:
        asked[update.feature] = update
        yield
    for name, update in asked.items():
        try:
            _check(known.get(name), update)
        except ApiError as error:
            return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
        yield
    response = UpdateFeaturesResponse(error_message=None)
    if context.api_version <= RESULTS_UNTIL:
        for update in request.feature_updates:
            response.results.append(UpdatableFeatureResult(feature=update.feature, error_message=FINE))
            yield
    return response


def _check(feature: Feature | None, update: FeatureUpdateKey) -> None:
    """Raise ApiError unless the feature has that level."""
    name, level = update.feature, update.max_version_level
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _refused(f"{update.upgrade_type} is no kind of upgrade")
    if level < 0:
        raise _refused(f"a level is not negative, as {level} for {name} is")
    if feature is None:
        raise _refused(f"there is no feature {name} here")
    if not feature.lowest <= level <= feature.highest:
        raise _refused(f"{name} has levels {feature.lowest} to {feature.highest}, not {level}")
    if level < feature.level and update.upgrade_type == UPGRADE:
        raise _refused(f"{name} is at {feature.level}, so {level} would be a downgrade and is not asked for as one")
    if level != feature.level:
        raise _refused(
            f"{name} stays at {feature.level}; group.coordinator.rebalance.protocols says at the start which protocols "
            "are served"
        )


def _refused(reason: str) -> ApiError:
    return ApiError(f"no feature was changed: {reason}", ErrorCode.INVALID_UPDATE_VERSION)
