"""Checkpoints. With `--checkpoints PLACE`, the checkpoint of a query is the directory PLACE/QUERY.

QUERY is NAME.IDENTITY or NAME.SINK.IDENTITY, where NAME is the pipeline's name. So the checkpoints of one identity can
be found without the pipeline's declaration, and several pipelines can share a place.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.pipelines.declarations import TemporaryError
from tidelog.pipelines.sinks.stores import is_url, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ObsoleteCheckpoints(NamedTuple):
    """The checkpoints of an identity that no run uses any more."""

    place: str
    pipeline: str
    identity: str

    def names(self) -> tuple[str, str]:
        """Return glob patterns for the names of the checkpoints' directories. They match no other directory, because no
        other pipeline has this identity.
        """
        return f"{self.pipeline}.{self.identity}", f"{self.pipeline}.*.{self.identity}"


def place_of_checkpoints(text: str) -> str:
    """If `text` is a path, return the absolute path, so that commands in other directories find the place. If `text` is
    a URL, return it without the slash at its end.
    """
    return (text if "://" in text else local_path(text)).rstrip("/")


def has_offsets(spark: "SparkSession", checkpoint: str) -> bool:
    """Return whether Spark has planned a micro-batch with this checkpoint. `checkpoint` is a path or a URI, with
    the same meaning as in Spark.

    Raises TemporaryError if its file system cannot be read.
    """
    try:
        with _hadoop(spark, f"{checkpoint}/offsets") as (files, offsets):
            # Beside the offsets, there can be checksums and temporary files, whose names are not numbers.
            return bool(files.exists(offsets)) and any(
                each.getPath().getName().isdecimal() for each in files.listStatus(offsets)
            )
    except OSError as error:
        raise TemporaryError(f"the checkpoint {checkpoint} cannot be read: {error}") from error


def remove_local(obsolete: ObsoleteCheckpoints) -> bool:
    """If the place is in the local file system, remove the checkpoints and return True. Otherwise, return False.

    Raises OSError.
    """
    if is_url(obsolete.place):
        return False
    for name in obsolete.names():
        for path in Path(local_path(obsolete.place)).glob(name):
            shutil.rmtree(path)
    return True


def remove_with_spark(spark: "SparkSession", obsolete: ObsoleteCheckpoints) -> bool:
    """Remove the checkpoints, and return True. Spark must be able to write to their place. Raises OSError."""
    for name in obsolete.names():
        with _hadoop(spark, f"{obsolete.place}/{name}") as (files, pattern):
            for found in files.globStatus(pattern) or ():
                files.delete(found.getPath(), True)
    return True


@contextmanager
def _hadoop(spark: "SparkSession", path: str) -> Iterator[tuple[Any, Any]]:
    """Yield Hadoop's file system of `path`, and `path` as Hadoop's Path. Raises OSError for an error of Java."""
    from py4j.protocol import Py4JError

    from tidelog.pipelines.failures import first_line

    jvm: Any = spark._jvm
    try:
        found = jvm.org.apache.hadoop.fs.Path(path)
        yield found.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), found
    except Py4JError as error:
        raise OSError(first_line(str(getattr(error, "java_exception", error)))) from error
