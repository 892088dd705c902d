"""Convert the exception of a failed start into one line that names the cause and the remedy."""

import errno
import logging
import socket
import sys
from collections.abc import Sequence
from typing import NamedTuple

log = logging.getLogger("tidelog.broker")


class Remedies(NamedTuple):
    """Texts that say how the user can choose another address or directory: on the command line, or in Python."""

    another_address: str
    another_directory: str


ON_THE_COMMAND_LINE = Remedies(
    "choose another address with --listen HOST:PORT", "choose another directory with --data DIR"
)
IN_PYTHON = Remedies("choose another address with host= and port=", "choose another directory with data=")


def explain(error: Exception, directories: Sequence[str], address: str, remedies: Remedies) -> str:
    """Return one line for `error`, which the start of a broker has raised. `directories` are its data directories,
    `address` is its HOST:PORT.

    For an exception of Tidelog, the line is the exception's own text. For an exception of SQLite, the line also names
    the data directories. For an error of the operating system, the line is the result of `system_error` unless this
    is None. Any other exception is reported as an internal error, and its traceback is logged.
    """
    if isinstance(error, OSError):
        explanation = system_error(error, _directory_of(error, directories), address, remedies)
        if explanation is not None:
            return explanation
    if type(error).__module__.startswith("tidelog."):
        return " ".join(str(error).split())
    sqlite = sys.modules.get("sqlite3")
    if sqlite is not None and isinstance(error, sqlite.Error):
        return f"the metadata store in {' or '.join(directories)}: {error}"
    log.error("start=failed", exc_info=error)
    return f"internal error, please report it: {type(error).__name__}: {error}"


def _directory_of(error: OSError, directories: Sequence[str]) -> str:
    """Return the data directory that contains the error's path or is this path. If there is none, return a data
    directory below the path, or otherwise the first data directory.
    """
    name = error.filename if isinstance(error.filename, str) else ""
    holders = [path for path in directories if name == path or name.startswith(f"{path}/")]
    # If a parent of a data directory cannot be created, the error names the parent.
    below = [path for path in directories if name and path.startswith(f"{name}/")]
    return max(holders, key=len) if holders else [*below, directories[0]][0]


def system_error(error: OSError, directory: str, address: str, remedies: Remedies) -> str | None:
    """Return one line for an error of the operating system at a broker's start. Returns None if its cause is unknown
    and it names no file.
    """
    file_path = error.filename if isinstance(error.filename, str) else None
    other_address, other_directory = remedies.another_address, remedies.another_directory
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"{address} is in use: stop the program that listens there, or {other_address} "
                "(port 0 chooses a free port)"
            )
        case errno.EADDRNOTAVAIL:
            return f"{address} is not an address of this machine: {other_address}"
        case errno.EACCES | errno.EPERM if file_path is None:
            return (
                f"no permission to listen on {address} (ports below 1024 are reserved for the system): {other_address}"
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"{file_path or directory} cannot be written ({error.strerror}): {other_directory}"
        case errno.ENOSPC | errno.EDQUOT:
            return f"no space is left for {directory} ({error.strerror}): free some space, or {other_directory}"
        case errno.EMFILE | errno.ENFILE:
            return f"{error.strerror}: raise the limit of open files, for example with ulimit -n 65536"
        case errno.ENOENT if file_path is not None:
            return f"{file_path} cannot be created ({error.strerror}): {other_directory}"
        case errno.EEXIST | errno.ENOTDIR if file_path is not None:
            # If a parent of a path is not a directory, the error names the whole path and not the parent.
            path = directory if file_path.startswith(f"{directory}/") else file_path
            return f"{path} is not a directory: {other_directory}"
        case errno.EWOULDBLOCK:
            return f"{directory} is in use by another broker: stop it, or {other_directory}"
    if isinstance(error, socket.gaierror):
        return f"{address}: unknown host ({error.strerror})"
    return f"{file_path}: {error.strerror}" if file_path and error.strerror else None
