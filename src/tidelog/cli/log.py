"""`tidelog log`: dump and verify on files, without a broker; dirs, which asks brokers, is in `log_dirs`."""

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
from tidelog.cli.when import iso

if TYPE_CHECKING:
    from tidelog.log.dump import Entry
    from tidelog.log.verify import Finding, Verified
    from tidelog.runtime.disk import LocalDisk

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.command()(dirs)

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...", show_default=False, help="Log files, partitions' directories, or data directories."
    ),
]

USUAL = {
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
"""What a line for people leaves out: it says something only when it differs."""

APART = ("file", "kind", "position", "crc")
"""What a line for people has elsewhere: in its head, or (the CRC) nowhere, as `crc_ok` says what matters."""


@app.callback()
def log() -> None:
    """Dump and verify log files, show data directories: Tidelog's or Kafka's.

    dump and verify read files, and never write. While a broker is running,
    the last batch may be incomplete: stop the broker first, or work on a
    copy.

    Examples:

    $ tidelog log dump tidelog-data/orders-0
    $ tidelog log verify tidelog-data
    """


@app.command()
def dump(
    paths: Paths,
    records: Annotated[bool, typer.Option("--records", "-r", help="Print the records of each batch, too.")] = False,
    json: AsJson = False,
) -> None:
    """Print what is in log files: batches, index entries, checkpoints.

    One entry per line, with its position in the file. Fields with their
    usual values are left out; --json prints all, one object per line. The
    exit code is 1 if there is damage.

    Examples:

    $ tidelog log dump tidelog-data/orders-0
    $ tidelog log dump tidelog-data/orders-0/*.log -r
    $ tidelog log dump tidelog-data/orders-0 --json | jq .base_offset
    """
    sound, failures = readable(paths)
    damaged = False
    for path in sound:
        file = None
        for entry, typed in entries(path, records):
            damaged |= entry["kind"] == "damage"
            if json:
                print(json_line(entry_json(entry)))
                continue
            if typed != file:
                file = typed
                print(f"{printable(file)}:")
            print(entry_text(entry))
    if damaged:
        failures.append(CommandError("there is damage, see above (tidelog log verify finds all of it)"))
    sys.stdout.flush()
    raise_together(failures)


def entries(path: str, records: bool) -> "Iterator[tuple[Entry, str]]":
    """Each entry, and its file as the user typed it. What printing one raises is not taken for an error of the log."""
    from tidelog.log.dump import dump

    with reading(path) as (disk, full_path):
        for entry in dump(disk, full_path, records=records):
            yield entry, as_typed(str(entry["file"]), full_path, path)


@app.command()
def verify(
    paths: Paths,
    records: Annotated[bool, typer.Option("--records/--no-records", help="Decode every record; slower.")] = True,
    json: AsJson = False,
) -> None:
    """Find every defect in log files.

    Findings of one kind in one file, and notes of one kind in one partition,
    are one line with their number, damage last; --json has them all.

    Checks batches and their CRC, every record, indexes, snapshots and
    checkpoints. The exit code is 1 if there is damage; notes are no damage.

    Examples:

    $ tidelog log verify tidelog-data
    $ tidelog log verify disk1 disk2
    $ tidelog log verify tidelog-data/orders-0 --no-records
    $ tidelog log verify /var/lib/kafka/data --json
    """
    from tidelog.log.verify import NOTE, Verified, verify

    sound, failures = readable(paths)
    result = Verified()
    for path in sound:
        with reading(path) as (disk, full_path), working(f"Verifying {full_path}"):
            found = verify(disk, full_path, records=records)
        result.add(found)
        for finding, more, last in alike(found.findings if not json else ()):
            file = as_typed(finding.path, full_path, path)
            others = ""
            if more:
                place = " beside it" if finding.severity == NOTE else f", the last at {last}"
                others = f" (and {counted(more, 'more', 'more')} of the kind{place})"
            print(printable(f"{finding.severity}: {file} at {finding.position}: {finding.reason}{others}"))
    if json:
        print_json(verified_json(result))
        sys.stdout.flush()
        raise_together(failures)
        raise typer.Exit(1 if result.damaged else 0)
    what = [counted(result.files, "file"), size(result.bytes), counted(result.batches, "batch", "batches")]
    if records:
        what.append(counted(result.records, "record"))
    defects = sum(finding.severity == "damage" for finding in result.findings)
    if sound:
        print(f"{', '.join(what)}: {counted(defects, 'defect') if defects else 'no damage'}", flush=True)
    raise_together(failures)
    raise typer.Exit(1 if result.damaged else 0)


def alike(findings: "Sequence[Finding]") -> "list[tuple[Finding, int, int]]":
    """The first finding of each kind in each file, of notes in each partition, how many more there are, and the
    position of the last; notes first.

    Of a kind are those whose reasons differ in numbers only: one cause may have thousands of consequences.
    """
    from tidelog.log.file_kinds import partition_of
    from tidelog.log.verify import NOTE

    kinds: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: finding.severity != NOTE):
        kind = re.sub(r"0x[0-9a-f]+|\d+", "#", finding.reason)
        place = finding.path
        directory = place.rpartition("/")[0]
        if finding.severity == NOTE and partition_of(directory.rpartition("/")[2]):
            place = directory
        kinds.setdefault((place, finding.severity, kind), []).append(finding)
    return [(found[0], len(found) - 1, found[-1].position) for found in kinds.values()]


def readable(paths: list[str]) -> tuple[list[str], list[CommandError]]:
    """Those that can be read, and why the others cannot: found before any takes its time.

    Raises CommandError for one that is not there or is no log: it was mistyped, most likely.
    """
    sound: list[str] = []
    failures: list[CommandError] = []
    for path in paths:
        try:
            with reading(path):
                sound.append(path)
        except CommandError as error:
            if not isinstance(error.__cause__, OSError) or isinstance(error.__cause__, FileNotFoundError):
                raise
            failures.append(error)
    return sound, failures


@contextmanager
def reading(path: str) -> "Iterator[tuple[LocalDisk, str]]":
    """A disk, and the path as the library takes it. Raises CommandError for what cannot be read, or is no log."""
    from tidelog.runtime.disk import LocalDisk

    disk = LocalDisk()
    full_path = os.path.abspath(path)  # noqa: PTH100 - not resolved: what is shown is what was typed
    try:
        if not is_log(disk, full_path):
            raise CommandError(
                f"{path} is none of Tidelog's or Kafka's log files, nor a partition's directory or a data directory"
            )
        yield disk, full_path
    except OSError as error:
        raise CommandError(f"{error.filename or path}: {error.strerror}") from error
    finally:
        disk.close()


def is_log(disk: "LocalDisk", path: str) -> bool:
    """Whether a broker wrote it, as far as names tell: they say how a file is to be read. Raises OSError."""
    from tidelog.log.file_kinds import Kind, file_kind, partition_of

    def of_a_log(name: str) -> bool:
        return file_kind(name).kind not in (Kind.OTHER, Kind.LEFT)

    if not disk.is_dir(path):
        disk.size(path)  # it must be there
        return file_kind(os.path.basename(path)).kind is not Kind.OTHER  # noqa: PTH119
    names = disk.list(path)
    partitions = [f"{path}/{name}" for name in names if partition_of(name) and disk.is_dir(f"{path}/{name}")]
    return any(map(of_a_log, names)) or any(_holds_a_log(disk, child, of_a_log) for child in partitions)


def _holds_a_log(disk: "LocalDisk", directory: str, of_a_log: Callable[[str], bool]) -> bool:
    """Of one that has a partition's name: if it cannot be listed, that is found when it is read."""
    try:
        return any(map(of_a_log, disk.list(directory)))
    except OSError:
        return True


def as_typed(file: str, full_path: str, path: str) -> str:
    """A file below `full_path` as one below `path`, which the user typed for it."""
    return path.rstrip("/") + file.removeprefix(full_path)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A sign of life at a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from tidelog.cli.tables import console

    with console(stderr=True).status(what):
        yield


def entry_text(entry: "Entry") -> str:
    """`     4096  batch  base_offset=... ...`; a record's line has its offset in place of the position."""
    kind = str(entry["kind"])
    shown = {name: value for name, value in entry.items() if name not in APART and USUAL.get(name, ...) != value}
    if kind == "record":
        head = f"{'':12}  record  "
    else:
        head = f"{entry['position']:>12}  {kind}  "
    return head + " ".join(f"{name}={value_text(name, value)}" for name, value in shown.items())


def value_text(name: str, value: object) -> str:
    if isinstance(value, bytes):
        return quoted(value)
    if isinstance(value, list):
        return "[" + " ".join(f"{printable(key)}={value_text('', data)}" for key, data in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and "timestamp" in name and value >= 0:
        return iso(value)
    return "null" if value is None else printable(str(value))


def quoted(data: bytes) -> str:
    """Bytes in quotes: as text where they are UTF-8, with escapes for what is not and for control characters."""
    return '"' + printable(data.decode(errors="backslashreplace")).replace('"', '\\"') + '"'


def entry_json(entry: "Entry") -> dict[str, Any]:
    """The entry as it is; bytes that are not UTF-8 under the name with `_base64`."""
    document: dict[str, Any] = {}
    for name, value in entry.items():
        if isinstance(value, bytes):
            document |= text_or_base64(name, value)
        elif name == "headers" and isinstance(value, list):
            document[name] = headers_json(value)
        else:
            document[name] = value
    return document


def verified_json(result: "Verified") -> dict[str, Any]:
    return {
        "files": result.files,
        "bytes": result.bytes,
        "batches": result.batches,
        "records": result.records,
        "damaged": result.damaged,
        "findings": [finding._asdict() for finding in result.findings],
    }
