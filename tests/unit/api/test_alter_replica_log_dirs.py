"""Moves between data directories: the errors of partitions that the broker does not hold."""

from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.api.alter_replica_log_dirs import handle
from tidelog.model.steps import run_all
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)

DIRECTORY = "/data"


@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [
        ("orders", 0, ErrorCode.REPLICA_NOT_AVAILABLE),  # on another broker, or not here yet
        ("orders", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("missing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_partition_that_is_not_on_this_broker(topic: str, partition: int, code: ErrorCode) -> None:
    directories = SimpleNamespace(paths=[DIRECTORY], failed={}, by_path=lambda path: object())
    services: Any = SimpleNamespace(
        partitions=SimpleNamespace(directories=directories, find=lambda topic, index: None),
        config=SimpleNamespace(cordoned_directories=()),
        metadata=SimpleNamespace(image=SimpleNamespace(topics={"orders": SimpleNamespace(partitions=[object()])})),
    )
    request = AlterReplicaLogDirsRequest([AlterReplicaLogDir(DIRECTORY, [AlterReplicaLogDirTopic(topic, [partition])])])
    answer = run_all(handle(services, SimpleNamespace(), request))  # type: ignore[arg-type]
    assert [part.error_code for part in answer.results[0].partitions] == [code]
