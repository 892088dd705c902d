"""`tidelog log`: the commands `dump` and `verify`, which read files without a broker. The command `dirs`, which sends
requests to brokers, is in `log_dirs`.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.connection import AsJson
from tidelog.cli.errors import CommandError, raise_together
from tidelog.cli.log_dirs import dirs
from tidelog.cli.records import headers_json, text_or_base64
from tidelog.cli.tables import counted, json_line, print_json, printable, size
from tidelog.cli.when import iso_time

if TYPE_CHECKING:
    from tidelog.log.dump import Entry
    from tidelog.log.verify import Finding, VerifyReport
    from tidelog.runtime.disk import LocalDisk

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.command()(dirs)

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...", show_default=False, help="Log files, partitions' directories, or data directories."
    ),
]

USUAL_VALUES = {
    "magic": 2,
    "crc_ok": True,
    "codec": "none",
    "timestamp_type": "CreateTime",
    "leader_epoch": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "base_sequence": -1,
    "transactional": False,
    "control": False,
    "headers": [],
    "coordinator_epoch": -1,
    "transaction_start": -1,
}
"""Usual values of fields. A line for people omits a field that has its usual value."""

FIELDS_NOT_LISTED = ("file", "kind", "position", "crc")
"""Fields that a line for people does not list by name. The line begins with position and kind, and a heading above it
names the file. The CRC is not shown, because `crc_ok=false` is shown if it is wrong."""


@app.callback()
def log() -> None:
    """Dump and verify log files and show data directories, of Tidelog or Kafka.

    The commands dump and verify read files and never write. While a broker
    is running, the last batch may be incomplete. Therefore stop the broker
    first, or work on a copy.

    Examples:

    $ tidelog log dump tidelog-data/orders-0
    $ tidelog log verify tidelog-data
    """


@app.command()
def dump(
    paths: Paths,
    records: Annotated[bool, typer.Option("--records", "-r", help="Also print the records of each batch.")] = False,
    json: AsJson = False,
) -> None:
    """Print the contents of log files: batches, index entries, checkpoints.

    Prints one entry per line, with its position in the file. Fields with
    their usual values are left out. --json prints one object per line, with
    all fields. The exit code is 1 if there is damage.

    Examples:

    $ tidelog log dump tidelog-data/orders-0
    $ tidelog log dump tidelog-data/orders-0/*.log -r
    $ tidelog log dump tidelog-data/orders-0 --json | jq .base_offset
    """
    readable_paths, failures = split_readable(paths)
    damaged = False
    for path in readable_paths:
        heading = None
        for entry, file in read_entries(path, records):
            damaged |= entry["kind"] == "damage"
            if json:
                print(json_line(entry_json(entry)))
                continue
            if file != heading:
                heading = file
                print(f"{printable(heading)}:")
            print(entry_text(entry))
    if damaged:
        failures.append(CommandError("damage was found, see above; tidelog log verify finds all damage"))
    sys.stdout.flush()
    raise_together(failures)


def read_entries(path: str, records: bool) -> "Iterator[tuple[Entry, str]]":
    """Yield each entry with the path of its file. The path begins with `path`, which the user typed.

    Raises CommandError if the log cannot be read. An OSError that the caller raises when it prints an entry is not
    caught here, because it is not an error of the log.
    """
    from tidelog.log.dump import dump

    with open_log(path) as (disk, full_path):
        for entry in dump(disk, full_path, records=records):
            yield entry, path_as_typed(str(entry["file"]), full_path, path)


@app.command()
def verify(
    paths: Paths,
    records: Annotated[
        bool, typer.Option("--records/--no-records", help="Decode every record, which is slower.")
    ] = True,
    json: AsJson = False,
) -> None:
    """Find every defect in log files.

    Checks batches and their CRC, every record, indexes, snapshots and
    checkpoints. The exit code is 1 if there is damage; notes are not damage.
    If a broker has several data directories, name all of them: only the
    directory with the metadata shows that the others belong to Tidelog. A
    missing segment is damage in Tidelog's directories, but not in Kafka's.

    Similar findings in a file, and similar notes in a partition, are printed
    as one line that says how many there are. Notes are printed before
    damage. --json lists every finding.

    Examples:

    $ tidelog log verify tidelog-data
    $ tidelog log verify disk1 disk2
    $ tidelog log verify tidelog-data/orders-0 --no-records
    $ tidelog log verify /var/lib/kafka/data --json
    """
    from tidelog.log.ownership import TidelogDirectories
    from tidelog.log.verify import NOTE, VerifyReport, verify

    readable_paths, failures = split_readable(paths)
    full_paths = [os.path.abspath(path) for path in readable_paths]  # noqa: PTH100 - as in `open_log`
    result = VerifyReport()
    for path in readable_paths:
        with open_log(path) as (disk, full_path), show_activity(f"Verifying {full_path}"):
            tidelog_directories = TidelogDirectories(disk, full_paths)
            report = verify(disk, full_path, records=records, tidelog_directories=tidelog_directories)
        result.add(report)
        for finding, more, last in group_similar(report.findings if not json else ()):
            file = path_as_typed(finding.path, full_path, path)
            similar = ""
            if more:
                places = " in the same directory" if finding.severity == NOTE else f", the last at {last}"
                similar = f" (and {counted(more, 'more', 'more')} of this kind{places})"
            print(printable(f"{finding.severity}: {file} at {finding.position}: {finding.reason}{similar}"))
    if json:
        print_json(report_json(result))
        sys.stdout.flush()
        raise_together(failures)
        raise typer.Exit(1 if result.damaged else 0)
    counts = [counted(result.files, "file"), size(result.bytes), counted(result.batches, "batch", "batches")]
    if records:
        counts.append(counted(result.records, "record"))
    defects = sum(finding.severity == "damage" for finding in result.findings)
    if readable_paths:
        print(f"{', '.join(counts)}: {counted(defects, 'defect') if defects else 'no damage'}", flush=True)
    raise_together(failures)
    raise typer.Exit(1 if result.damaged else 0)


def group_similar(findings: "Sequence[Finding]") -> "list[tuple[Finding, int, int]]":
    """Group similar findings in each file, and similar notes in each partition.

    Return for each group the first finding, the number of the other findings, and the position of the last finding.
    Groups of notes are before groups of damage. Findings are similar if their reasons differ only in numbers. They
    are grouped because one cause may lead to thousands of findings.
    """
    from tidelog.log.file_kinds import partition_of
    from tidelog.log.verify import NOTE

    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: finding.severity != NOTE):
        reason_without_numbers = re.sub(r"0x[0-9a-f]+|\d+", "#", finding.reason)
        place = finding.path
        directory = place.rpartition("/")[0]
        if finding.severity == NOTE and partition_of(directory.rpartition("/")[2]):
            place = directory
        groups.setdefault((place, finding.severity, reason_without_numbers), []).append(finding)
    return [(group[0], len(group) - 1, group[-1].position) for group in groups.values()]


def split_readable(paths: list[str]) -> tuple[list[str], list[CommandError]]:
    """Check all paths before the command reads the first log, because it may take long to read a log. Return the paths
    that can be read, and an error for each path that exists but cannot be read.

    Raises CommandError for a path that does not exist or is not a log, because the user has probably mistyped it.
    """
    readable_paths: list[str] = []
    failures: list[CommandError] = []
    for path in paths:
        try:
            with open_log(path):
                readable_paths.append(path)
        except CommandError as error:
            if not isinstance(error.__cause__, OSError) or isinstance(error.__cause__, FileNotFoundError):
                raise
            failures.append(error)
    return readable_paths, failures


@contextmanager
def open_log(path: str) -> "Iterator[tuple[LocalDisk, str]]":
    """Yield a disk and the absolute path. Raises CommandError if the path cannot be read or is not a log.

    An OSError in the block also becomes a CommandError.
    """
    from tidelog.runtime.disk import LocalDisk

    disk = LocalDisk()
    full_path = os.path.abspath(path)  # noqa: PTH100 - symbolic links are not resolved: output shows the typed path
    try:
        if not is_log(disk, full_path):
            raise CommandError(
                f"{path} is neither a log file, nor a partition's directory, nor a data directory of Tidelog or Kafka"
            )
        yield disk, full_path
    except OSError as error:
        raise CommandError(f"{error.filename or path}: {error.strerror}") from error
    finally:
        disk.close()


def is_log(disk: "LocalDisk", path: str) -> bool:
    """Return whether the file or directory can be a broker's. Only names are checked, because the name of a broker's
    file determines the file's format.

    Raises OSError if the path does not exist or cannot be listed.
    """
    from tidelog.log.file_kinds import Kind, file_kind, partition_of

    def is_log_file(name: str) -> bool:
        return file_kind(name).kind not in (Kind.OTHER, Kind.LEFTOVER)

    if not disk.is_dir(path):
        disk.size(path)  # raises OSError if the file does not exist
        return file_kind(os.path.basename(path)).kind is not Kind.OTHER  # noqa: PTH119
    names = disk.list(path)
    partitions = [f"{path}/{name}" for name in names if partition_of(name) and disk.is_dir(f"{path}/{name}")]
    return any(map(is_log_file, names)) or any(_contains_log_file(disk, child, is_log_file) for child in partitions)


def _contains_log_file(disk: "LocalDisk", directory: str, is_log_file: Callable[[str], bool]) -> bool:
    """Return whether a directory with a partition's name contains a log file.

    Return True if the directory cannot be listed: the command reports the error when it reads the directory.
    """
    try:
        return any(map(is_log_file, disk.list(directory)))
    except OSError:
        return True


def path_as_typed(file: str, full_path: str, path: str) -> str:
    """Return `file` with its beginning `full_path` replaced by `path`, which the user has typed."""
    return path.rstrip("/") + file.removeprefix(full_path)


@contextmanager
def show_activity(text: str) -> Iterator[None]:
    """Show the text and an animation on stderr while the block runs. If stderr is not a terminal, show nothing."""
    if not sys.stderr.isatty():
        yield
        return
    from tidelog.cli.tables import console

    with console(stderr=True).status(text):
        yield


def entry_text(entry: "Entry") -> str:
    """Return a line for people, such as `     4096  batch  base_offset=...`. A record's line has no position."""
    kind = str(entry["kind"])
    shown = {
        name: value
        for name, value in entry.items()
        if name not in FIELDS_NOT_LISTED and USUAL_VALUES.get(name, ...) != value
    }
    if kind == "record":
        line_start = f"{'':12}  record  "
    else:
        line_start = f"{entry['position']:>12}  {kind}  "
    return line_start + " ".join(f"{name}={value_text(name, value)}" for name, value in shown.items())


def value_text(name: str, value: object) -> str:
    if isinstance(value, bytes):
        return quote(value)
    if isinstance(value, list):
        return "[" + " ".join(f"{printable(key)}={value_text('', data)}" for key, data in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and "timestamp" in name and value >= 0:
        return iso_time(value)
    return "null" if value is None else printable(str(value))


def quote(data: bytes) -> str:
    """Return the bytes as text in quotes, with escapes for control characters and for bytes that are not UTF-8."""
    return '"' + printable(data.decode(errors="backslashreplace")).replace('"', '\\"') + '"'


def entry_json(entry: "Entry") -> dict[str, Any]:
    """Return all fields of the entry. If the bytes of a field are not UTF-8, the field's name ends with `_base64`."""
    document: dict[str, Any] = {}
    for name, value in entry.items():
        if isinstance(value, bytes):
            document |= text_or_base64(name, value)
        elif name == "headers" and isinstance(value, list):
            document[name] = headers_json(value)
        else:
            document[name] = value
    return document


def report_json(result: "VerifyReport") -> dict[str, Any]:
    return {
        "files": result.files,
        "bytes": result.bytes,
        "batches": result.batches,
        "records": result.records,
        "damaged": result.damaged,
        "findings": [finding._asdict() for finding in result.findings],
    }
