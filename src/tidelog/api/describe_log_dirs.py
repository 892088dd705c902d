"""DescribeLogDirs (key 35), v1-5. v3: an error for the whole response; v4: sizes of the file systems (KIP-827); v5:
cordoned directories (KIP-1066).
"""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from tidelog.log.directories import DataDirectories
    from tidelog.runtime.interfaces import Disk


def handle(
    services: Services, context: RequestContext, request: DescribeLogDirsRequest
) -> Steps[Coroutine[Any, Any, DescribeLogDirsResponse]]:
    """Describe every data directory with its partitions. If the request names topics, only the requested partitions are
    described. A failed directory has an error and no partitions.
    """
    del context
    if request.topics is None:
        return _describe(services, None)
    requested: set[tuple[str, int]] = set()
    for topic in request.topics:
        for index in topic.partitions:
            requested.add((topic.topic, index))
            yield
        yield
    return _describe(services, requested)


async def _describe(services: Services, requested: set[tuple[str, int]] | None) -> DescribeLogDirsResponse:
    directories = services.partitions.directories
    run_blocking = services.runtime.tasks.run_blocking
    space = await run_blocking(
        _space, services.runtime.disk, [path for path in directories.paths if path not in directories.failed]
    )
    by_path = _partitions(services, directories, requested)
    cordoned = services.config.cordoned_directories
    results = []
    for path in directories.paths:
        if path in directories.failed or path not in space:
            results.append(DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, path))
            continue
        total, usable = space[path]
        topics = [DescribeLogDirsTopic(name, partitions) for name, partitions in by_path[path].items()]
        results.append(DescribeLogDirsResult(0, path, topics, total, usable, path in cordoned))
    return DescribeLogDirsResponse(results=results)


def _partitions(
    services: Services, directories: "DataDirectories", requested: set[tuple[str, int]] | None
) -> dict[str, dict[str, list[DescribeLogDirsPartition]]]:
    """Return the partitions by directory and topic. A partition that is being moved is in both directories."""
    by_path: dict[str, dict[str, list[DescribeLogDirsPartition]]] = {path: {} for path in directories.paths}

    def add(path: str, topic: str, entry: DescribeLogDirsPartition) -> None:
        by_path.setdefault(path, {}).setdefault(topic, []).append(entry)

    for partition in services.partitions:
        if requested is None or (partition.topic, partition.index) in requested:
            lag = max(partition.high_watermark - partition.log_end_offset, 0)
            entry = DescribeLogDirsPartition(partition.index, partition.log.size_bytes, lag, False)
            add(partition.log.directory.rpartition("/")[0], partition.topic, entry)
    for move in services.partitions.moves:
        partition = move.partition
        if partition.log.directory.rpartition("/")[0] == move.target.path:
            continue  # the move is complete: the partition already uses the copy
        if requested is None or (partition.topic, partition.index) in requested:
            entry = DescribeLogDirsPartition(partition.index, move.size_bytes, move.offset_lag, True)
            add(move.target.path, partition.topic, entry)
    return by_path


def _space(disk: "Disk", paths: list[str]) -> dict[str, tuple[int, int]]:
    """Return (total, usable) bytes of the file system of each directory. The result does not contain directories that
    cannot be read. Blocks.
    """
    space = {}
    for path in paths:
        try:
            space[path] = disk.total_bytes(path), disk.free_bytes(path)
        except OSError:
            continue
    return space
