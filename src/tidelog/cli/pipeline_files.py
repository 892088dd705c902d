"""Files that `tidelog pipeline` writes: the skeleton of a pipeline, and the archive of packages for executors."""

import importlib.metadata
import importlib.util
import re
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tidelog.cli.errors import CommandError, UsageError

SKELETON = '''"""Writes the total quantity of each product in the topic {topic} to the topic {topic}-totals.

Try it, with a broker that listens on localhost:9092 (tidelog start):

    echo '{{"product": "tea", "quantity": 2}}' | tidelog produce {topic}
    tidelog pipeline dry-run {name}.py
    tidelog pipeline run {name}.py --once
    tidelog consume {topic}-totals --from-beginning --until-end -f "{{key}} {{value}}"
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tidelog.pipelines import json, pipeline, topic


@pipeline(
    # Columns: the fields of the JSON value, and the struct `kafka` (key, topic, partition, offset, timestamp, headers).
    source=topic("{topic}", value=json("product string, quantity int")),
    # The topic is created if it does not exist. The columns of the key are not written into the value.
    sink=topic("{topic}-totals", value=json(), key="product", partitions=1),
    # A micro-batch begins this often, if there are new records.
    trigger="5 seconds",
    # "update" writes the totals that have changed. "append" writes rows that never change again.
    output_mode="update",
    # Records that cannot be parsed are written to this topic. Without this line, such a record stops the pipeline.
    dead_letters="{topic}-dead",
)
def {function}(sales: DataFrame) -> DataFrame:
    return sales.groupBy("product").agg(f.sum("quantity").alias("units"))
'''

IDENTIFIER = re.compile(r"[a-z][a-z0-9_-]{0,50}")

PACKED = (
    "tidelog", "cramjam", "crc32c", "numpy", "pyarrow", "numba", "llvmlite", "pandas", "python-dateutil", "pytz", "six",
    "tzdata", "fastavro", "protobuf",
)  # fmt: skip
"""Packages that tasks import: the data source, its decoders, and the formats. Packages that are not installed here are
left out."""
OWN_PACKAGES = ("tidelog", "pyspark_tidelog")


def write_skeleton(name: str, directory: Path) -> Path:
    """Write NAME.py and return its path. Raises UsageError for an illegal name, CommandError if the file exists."""
    name = name.removesuffix(".py")
    if not IDENTIFIER.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name for a file and a topic: begin with a lower-case letter, and use at most 51"
            " lower-case letters, digits, - and _"
        )
    path = directory / f"{name}.py"
    text = SKELETON.format(name=name, topic=name, function=name.replace("-", "_"))
    try:
        with open(path, "x") as file:
            file.write(text)
    except FileExistsError:
        raise CommandError(f"{path} exists already: choose another name") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from None
    return path


def pack(output: Path, without: Sequence[str]) -> list[str]:
    """Write the archive and return the names of its packages. Raises UsageError for an unknown package."""
    left_out = [canonical(name) for name in without]
    unknown = [name for name in left_out if name not in PACKED]
    if unknown:
        raise UsageError(f"--without takes packages of the archive ({', '.join(PACKED)}), not {unknown[0]}")
    if not output.name.endswith((".tar.gz", ".tgz")):
        raise UsageError(f"{output}: the name of the archive must end with .tar.gz")
    packed = []
    try:
        with tarfile.open(output, "w:gz", compresslevel=1) as archive:
            for name in PACKED:
                if name not in left_out and add_package(archive, name):
                    packed.append(name)
    except OSError as error:
        raise CommandError(f"{output} cannot be written: {error.strerror}") from None
    return packed


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def add_package(archive: tarfile.TarFile, name: str) -> bool:
    """If a package is installed, add its files to the archive. Return whether the package is installed."""
    if name == "tidelog":
        # The directories are searched, because an editable installation has no list of its installed files.
        for own in OWN_PACKAGES:
            spec = importlib.util.find_spec(own)
            assert spec is not None
            assert spec.submodule_search_locations
            directory = Path(spec.submodule_search_locations[0])
            add_files(archive, directory.parent, sorted(directory.rglob("*")))
        return True
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    root = Path(str(distribution.locate_file("")))
    add_files(archive, root, sorted(Path(str(distribution.locate_file(file))) for file in distribution.files or ()))
    return True


def add_files(archive: tarfile.TarFile, root: Path, paths: Iterable[Path]) -> None:
    """Add each file under its path relative to `root`. Caches, tests and files outside `root` are left out."""
    for path in paths:
        if not path.is_relative_to(root) or not path.is_file():
            continue
        relative = path.relative_to(root)  # `root` itself may be below a directory that is named tests
        if not {"__pycache__", "tests", ".."} & set(relative.parts):
            archive.add(path, str(relative), recursive=False)
