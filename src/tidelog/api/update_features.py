"""UpdateFeatures (key 57), v0-2 (KIP-584). v1: `upgrade_type`, `validate_only`; v2: one error for all features.

The broker's version and settings determine the level of group.version, so a request cannot change this level. The
controller finalizes the levels of the other features. As in Kafka, a request for the current level succeeds.
"""

from collections.abc import Coroutine
from typing import Any

from tidelog.api.features import GROUP_FEATURE, Feature, cluster_features, features
from tidelog.api.services import RequestContext, Services
from tidelog.metadata import link
from tidelog.metadata.features import LevelChange
from tidelog.model.steps import Steps
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
RESULTS_VERSION_MAX = 1
"""The last version whose response has a result for each feature."""
NO_ERROR_MESSAGE = "NONE"
"""The error message of a success. Kafka sends this text and not null."""


def handle(
    services: Services, context: RequestContext, request: UpdateFeaturesRequest
) -> Steps[UpdateFeaturesResponse | Coroutine[Any, Any, UpdateFeaturesResponse]]:
    """Change all requested levels, or none of them if one change is refused. If several entries of the
    request name the same feature, the last of these entries is used, and each of them gets the same result.
    """
    all_features = features(services)
    finalized = cluster_features(services)
    changes: list[LevelChange] = []
    last_updates: dict[str, FeatureUpdateKey] = {}
    for update in request.feature_updates:
        last_updates[update.feature] = update
        yield
    for name, update in last_updates.items():
        try:
            _check(all_features.get(name), update, is_finalized=name in finalized)
        except ApiError as error:
            return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
        if name in finalized:
            changes.append(LevelChange(name, update.max_version_level, update.upgrade_type != UPGRADE))
        yield
    response = UpdateFeaturesResponse(error_message=None)
    if context.api_version <= RESULTS_VERSION_MAX:
        for update in request.feature_updates:
            response.results.append(UpdatableFeatureResult(feature=update.feature, error_message=NO_ERROR_MESSAGE))
            yield
    if not changes:
        return response
    return _change(services, link.UpdateFeatures(changes, request.validate_only, request.timeout_ms), response)


async def _change(
    services: Services, request: link.UpdateFeatures, success: UpdateFeaturesResponse
) -> UpdateFeaturesResponse:
    answer = await services.controller.update_features(request)
    if answer.error:
        return UpdateFeaturesResponse(error_code=answer.error, error_message=answer.message)
    return success


def _check(feature: Feature | None, update: FeatureUpdateKey, *, is_finalized: bool) -> None:
    """Raise ApiError if the level cannot be changed as requested. If the controller finalizes the level
    (`is_finalized`), it checks the request again. Otherwise the feature must already have the requested level.
    """
    name, level = update.feature, update.max_version_level
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _error(f"upgrade type {update.upgrade_type} is unknown")
    if level < 0:
        raise _error(f"the level {level} of {name} is negative")
    if feature is None:
        raise _error(f"this broker has no feature {name}")
    if not feature.lowest <= level <= feature.highest:
        raise _error(f"{name} has levels {feature.lowest} to {feature.highest}, not {level}")
    if level < feature.level and update.upgrade_type == UPGRADE:
        raise _error(f"{name} has level {feature.level}, and an upgrade to level {level} would be a downgrade")
    if level > feature.level and update.upgrade_type != UPGRADE:
        raise _error(f"{name} has level {feature.level}, and a downgrade to level {level} would be an upgrade")
    if level != feature.level and not is_finalized and name != GROUP_FEATURE:
        raise _error(f"this broker is not registered yet, so it does not know whether {name} can be changed; try again")
    if level != feature.level and not is_finalized:
        raise _error(
            f"{name} remains at level {feature.level}: the setting group.coordinator.rebalance.protocols determines "
            "this level when the broker starts"
        )


def _error(reason: str) -> ApiError:
    return ApiError(f"no feature was changed: {reason}", ErrorCode.INVALID_UPDATE_VERSION)
