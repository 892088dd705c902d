"""IncrementalAlterConfigs of loggers (resource type 8, KIP-412): change this process's log levels immediately."""

from collections.abc import Sequence

from tidelog.metadata.alterations import LOGGER_RESOURCE, Alteration, AlterationResult, Change, Operation, check_node
from tidelog.model.steps import Steps
from tidelog.runtime import loggers
from tidelog.wire.errors import ApiError, ErrorCode


def alter_loggers(
    alterations: Sequence[Alteration], node_id: int, *, validate_only: bool
) -> Steps[dict[int, AlterationResult]]:
    """Make the alterations of loggers and skip all others. Return the results, by position in `alterations`.

    Each alteration is made as a whole or not at all.
    """
    positions_by_node: dict[str, list[int]] = {}
    for position, alteration in enumerate(alterations):
        if alteration.resource_type == LOGGER_RESOURCE:
            positions_by_node.setdefault(alteration.resource_name, []).append(position)
        yield
    results: dict[int, AlterationResult] = {}
    for node_text, positions in positions_by_node.items():
        resource = (LOGGER_RESOURCE, node_text)
        try:
            if len(positions) > 1:
                raise ApiError("the request has this resource more than once", ErrorCode.INVALID_REQUEST)
            check_node(node_text, node_id)
            changes = alterations[positions[0]].changes
            yield from _check(changes)
            if not validate_only:
                for change in changes:
                    _apply(change)
                    yield
            result = AlterationResult(*resource)
        except ApiError as error:
            result = AlterationResult(*resource, error.code, error.message)
        results.update(dict.fromkeys(positions, result))
        yield
    return results


def _check(changes: Sequence[Change]) -> Steps[None]:
    levels = loggers.levels()
    seen_names: set[str] = set()
    for name, operation, level in changes:
        if name in seen_names:
            raise ApiError(f"the request names the logger {name} more than once", ErrorCode.INVALID_REQUEST)
        seen_names.add(name)
        if operation != Operation.DELETE and level is None:
            raise ApiError(f"the request has no level for the logger {name}", ErrorCode.INVALID_REQUEST)
        yield
    for name, operation, level in changes:
        if operation not in (Operation.SET, Operation.DELETE):
            raise ApiError("a logger's level can only be set or deleted", ErrorCode.INVALID_REQUEST)
        if name not in levels:
            raise ApiError(f"there is no logger {name}", ErrorCode.INVALID_CONFIG)
        if operation == Operation.DELETE and name == loggers.ROOT:
            raise ApiError(f"the level of the logger {loggers.ROOT} cannot be deleted", ErrorCode.INVALID_REQUEST)
        if operation == Operation.SET and level not in loggers.LEVELS:
            raise ApiError(
                f"{level} is not a log level: use one of {', '.join(loggers.LEVELS)}",
                ErrorCode.INVALID_CONFIG,
            )
        yield


def _apply(change: Change) -> None:
    if change.operation == Operation.DELETE:
        loggers.follow_root(change.setting)
    else:
        assert change.value is not None
        loggers.set_level(change.setting, change.value)
