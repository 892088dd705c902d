"""AlterReplicaLogDirs (key 34), v1-2: move partitions between the data directories of this broker (KIP-113).

The response says that a move has begun; DescribeLogDirs shows its progress. If the target is the directory in which
the partition already is, a running move is cancelled.
"""

from tidelog.api.repeats import NamedPartitions
from tidelog.api.services import RequestContext, Services
from tidelog.model.steps import Steps
from tidelog.wire.errors import (
    ApiError,
    ErrorCode,
    StorageError,
    UnknownTopicOrPartition,
)
from tidelog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def handle(
    services: Services, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> Steps[AlterReplicaLogDirsResponse]:
    """Begin the moves. Each partition succeeds or fails on its own. If the request names several directories for a
    partition, the last of them is used.
    """
    del context
    paths: NamedPartitions[str, str] = NamedPartitions()
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                paths.add(topic.name, index, directory.path)
                yield
            yield
        yield
    response = AlterReplicaLogDirsResponse()
    for name, partitions in paths.by_topic.items():
        result = AlterReplicaLogDirTopicResult(name)
        response.results.append(result)
        for index, path in partitions.items():
            code = ErrorCode.NONE
            try:
                _begin(services, name, index, path)
            except ApiError as error:
                code = error.code
            result.partitions.append(AlterReplicaLogDirPartitionResult(index, code))
            yield
    return response


def _begin(services: Services, topic: str, index: int, path: str) -> None:
    partitions = services.partitions
    directories = partitions.directories
    path = path.rstrip("/") if len(path) > 1 else path
    if path not in directories.paths:
        raise ApiError(f"{path} is not a data directory of this broker", ErrorCode.LOG_DIR_NOT_FOUND)
    target = directories.by_path(path)
    if target is None or path in directories.failed:
        raise StorageError(f"{path} is out of use")
    if path in services.config.cordoned_directories:
        raise ApiError(f"{path} is cordoned", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    partition = partitions.find(topic, index)
    if partition is None:
        image = services.metadata.image.topics.get(topic)
        if image is not None and 0 <= index < len(image.partitions):
            # kafka-reassign-partitions repeats the request after this error until this broker has the new replica.
            raise ApiError(f"this broker has no replica of {topic}-{index}", ErrorCode.REPLICA_NOT_AVAILABLE)
        raise UnknownTopicOrPartition(f"there is no partition {index} of topic {topic!r}")
    if partition.log.failure is not None:
        raise StorageError(f"{topic}-{index} is offline")
    partitions.moves.begin(partition, target)
