"""IncrementalAlterConfigs of loggers (resource type 8, KIP-412): this process's levels, changed at once."""

from collections.abc import Sequence

from tidelog.metadata.alterations import LOGGER_RESOURCE, Alteration, AlterationResult, Change, Operation, check_node
from tidelog.model.steps import Steps
from tidelog.runtime import loggers
from tidelog.wire.errors import ApiError, ErrorCode


def alter_loggers(
    alterations: Sequence[Alteration], node_id: int, *, validate_only: bool
) -> Steps[dict[int, AlterationResult]]:
    """Results of those that are about loggers, by their places in the request. Each is done whole or not at all."""
    places: dict[str, list[int]] = {}
    for place, alteration in enumerate(alterations):
        if alteration.resource_type == LOGGER_RESOURCE:
            places.setdefault(alteration.resource_name, []).append(place)
        yield
    results: dict[int, AlterationResult] = {}
    for name, same in places.items():
        resource = (LOGGER_RESOURCE, name)
        try:
            if len(same) > 1:
                raise ApiError("the request has this resource more than once", ErrorCode.INVALID_REQUEST)
            check_node(name, node_id)
            changes = alterations[same[0]].changes
            yield from _check(changes)
            if not validate_only:
                for change in changes:
                    _apply(change)
                    yield
            result = AlterationResult(*resource)
        except ApiError as error:
            result = AlterationResult(*resource, error.code, error.message)
        results.update(dict.fromkeys(same, result))
        yield
    return results


def _check(changes: Sequence[Change]) -> Steps[None]:
    known = loggers.levels()
    seen: set[str] = set()
    for name, operation, level in changes:
        if name in seen:
            raise ApiError("the request has a logger more than once", ErrorCode.INVALID_REQUEST)
        seen.add(name)
        if operation != Operation.DELETE and level is None:
            raise ApiError(f"{name} has no level", ErrorCode.INVALID_REQUEST)
        yield
    for name, operation, level in changes:
        if operation not in (Operation.SET, Operation.DELETE):
            raise ApiError("a level is set or taken back, nothing else", ErrorCode.INVALID_REQUEST)
        if name not in known:
            raise ApiError(f"there is no logger {name}", ErrorCode.INVALID_CONFIG)
        if operation == Operation.DELETE and name == loggers.ROOT:
            raise ApiError(
                f"{loggers.ROOT} follows nobody, so its level cannot be taken back", ErrorCode.INVALID_REQUEST
            )
        if operation == Operation.SET and level not in loggers.LEVELS:
            raise ApiError(
                f"{level} is no level; there are {', '.join(loggers.LEVELS)}",
                ErrorCode.INVALID_CONFIG,
            )
        yield


def _apply(change: Change) -> None:
    if change.operation == Operation.DELETE:
        loggers.follow_root(change.setting)
    else:
        assert change.value is not None
        loggers.set_level(change.setting, change.value)
