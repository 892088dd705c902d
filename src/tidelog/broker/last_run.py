"""A file in each data directory of a cluster's broker. It names the broker's last run in this directory.

When the next run has locked the directory, the named run has certainly ended. So the next run does not have to wait
until the lease of the named run ends. The next run concludes this only if the directory's path and the machine's boot
id have not changed. Otherwise the directory may be a copy, and its original may still be in use. The file also tells
the controller whether the directory may lack records that were acknowledged by the broker's last registered run
(KIP-966).

The file also has the mark of `replication/synced_mark.py`: whether every acknowledged record of the run is synced.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.log.checkpoints import META_PROPERTIES, format_properties, read_properties
from tidelog.log.errors import CorruptLog
from tidelog.metadata.records import DirectoryId
from tidelog.model.ids import uuid_from_text

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

LAST_RUN: Final = "broker.run"
"""Name of the file."""


class LastRun(NamedTuple):
    incarnation: str = ""
    """Identifies the run; "" if the run is unknown, or if the directories have different last runs."""
    broker_epoch: int = -1
    """The epoch with which the run was registered; -1 if it is unknown. If the directories have different last runs,
    this is the lowest of their epochs."""
    boot_id: str = ""
    """The machine's boot id during the run."""
    is_synced: bool = False
    """Whether every record that the run acknowledged is synced, so that a power cut loses none of them."""
    has_ended: bool = False
    """Whether the run has certainly ended. Valid only if this process has locked the directories."""


def read_last_run(disk: "Disk", paths: Sequence[str], boot_id: str = "") -> LastRun:
    """Return the run that used all directories last. Blocks.

    A caller that has locked the directories passes the machine's current boot id. Without `boot_id`, `has_ended` is
    False.
    """
    return common_run([_read(disk, path, boot_id) for path in paths])


def common_run(runs: Sequence[LastRun]) -> LastRun:
    """Return the run that used all directories last. `runs` contains the last run of each directory.

    If the runs differ, the result has no incarnation. Its epoch is the lowest one: a start may have failed after it had
    written its epoch into some of the directories only. The controller decides whether this epoch is recent enough.
    """
    if not runs:
        return LastRun()
    # If a crash happened after only some of the marks were changed, they differ.
    is_synced = all(run.is_synced for run in runs)
    if len({run._replace(is_synced=is_synced) for run in runs}) == 1:
        return runs[0]._replace(is_synced=is_synced)
    return LastRun(broker_epoch=min(run.broker_epoch for run in runs), is_synced=is_synced)


def _read(disk: "Disk", path: str, boot_id: str) -> LastRun:
    try:
        properties = read_properties(disk.read(f"{path}/{LAST_RUN}"), path)
        run = LastRun(properties["incarnation"], int(properties["broker.epoch"]), properties["boot.id"])
        is_same_directory = properties["path"] == _in_hex(path)
        is_synced = properties.get("synced") == "true"
    except (OSError, CorruptLog, LookupError, ValueError):
        return LastRun()  # the controller then treats the stop as unclean, which is always safe
    has_ended = is_same_directory and run.boot_id != "" and run.boot_id == boot_id
    return run._replace(is_synced=is_synced, has_ended=has_ended)


def write_last_run(disk: "Disk", paths: Sequence[str], run: LastRun) -> None:
    """Write the file into each directory, durably. Blocks. Raises OSError."""
    for path in paths:
        _write(disk, path, run)


def _write(disk: "Disk", path: str, run: LastRun) -> None:
    properties = {
        "incarnation": run.incarnation,
        "broker.epoch": str(run.broker_epoch),
        "boot.id": run.boot_id,
        "synced": "true" if run.is_synced else "false",
        "path": _in_hex(path),
    }
    disk.write_atomic(f"{path}/{LAST_RUN}", format_properties(properties))


def write_synced_mark(disk: "Disk", paths: Sequence[str], run: LastRun, is_synced: bool) -> dict[str, OSError]:
    """Write into the file of each directory whether every acknowledged record of the current run is synced. Return
    the errors by directory. In directories without an error, the change is durable. Blocks.

    If `is_synced` is False and the file cannot be written (for example, the disk is full), the whole file is removed.
    The controller then assumes that this run was not stopped cleanly.
    """
    errors: dict[str, OSError] = {}
    for path in paths:
        try:
            _write(disk, path, run._replace(is_synced=is_synced))
        except OSError as error:
            if is_synced:
                errors[path] = error
                continue
            try:
                if disk.exists(f"{path}/{LAST_RUN}"):
                    disk.remove(f"{path}/{LAST_RUN}")
                disk.sync_dir(path)
            except OSError as second_error:
                errors[path] = second_error
    return errors


def _in_hex(path: str) -> str:
    """Return the path in a form that needs no escaping."""
    return path.encode(errors="surrogateescape").hex()


def directory_ids(disk: "Disk", paths: Sequence[str]) -> tuple[DirectoryId, ...]:
    """Return the ids of the directories. Directories whose ids cannot be read are skipped. Blocks."""
    ids = []
    for path in paths:
        try:
            text = read_properties(disk.read(f"{path}/{META_PROPERTIES}"), path)["directory.id"]
            ids.append(DirectoryId(uuid_from_text(text)))
        except (OSError, CorruptLog, LookupError, ValueError):
            continue
    return tuple(ids)
