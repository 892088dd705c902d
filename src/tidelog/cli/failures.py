"""Why a broker did not start, in one line that says what to do."""

import errno
import logging
import socket
import sys

log = logging.getLogger("tidelog.cli")


def explain(error: Exception, directory: str, address: str) -> str:
    """One line for `error`, met while a broker with this data directory and `HOST:PORT` started.

    Errors that Tidelog raises say it themselves, those of the system are told by their number; anything else is a
    defect of ours, and the log gets where it came from.
    """
    if isinstance(error, OSError) and (told := system_error(error, directory, address)):
        return told
    if type(error).__module__.startswith("tidelog."):
        return " ".join(str(error).split())
    sqlite = sys.modules.get("sqlite3")
    if sqlite is not None and isinstance(error, sqlite.Error):
        return f"the metadata store in {directory}: {error}"
    log.error("start=failed", exc_info=error)
    return f"internal error, please report it: {type(error).__name__}: {error}"


def system_error(error: OSError, directory: str, address: str) -> str | None:
    where = error.filename if isinstance(error.filename, str) else None
    elsewhere = "choose another with --listen HOST:PORT"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{address} is in use: stop what listens there, or {elsewhere} (port 0 takes a free one)"
        case errno.EADDRNOTAVAIL:
            return f"{address} is not an address of this machine: {elsewhere}"
        case errno.EACCES | errno.EPERM if where is None:
            return f"no permission to listen on {address} (ports below 1024 are the system's): {elsewhere}"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return (
                f"{where or directory} cannot be written ({error.strerror}): choose another directory with --data DIR"
            )
        case errno.ENOSPC | errno.EDQUOT:
            return f"no space is left for {directory} ({error.strerror}): free some, or choose another with --data DIR"
        case errno.EMFILE | errno.ENFILE:
            return f"{error.strerror}: raise the limit of open files, for example with ulimit -n 65536"
        case errno.ENOENT if where is not None:
            return f"{where} cannot be made ({error.strerror}): choose another directory with --data DIR"
        case errno.EEXIST | errno.ENOTDIR if where is not None:
            return f"{where} is not a directory: choose another with --data DIR"
        case errno.EWOULDBLOCK:
            return f"{directory} is in use by another broker: stop it, or choose another directory with --data DIR"
    if isinstance(error, socket.gaierror):
        return f"{address}: unknown host ({error.strerror})"
    return f"{where}: {error.strerror}" if where and error.strerror else None
