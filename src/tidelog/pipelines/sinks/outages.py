"""Distinguishes outages of databases and catalogs from errors that would occur again in another attempt."""

from typing import Any

POSTGRESQL_CLASSES = ("08", "40", "53", "57", "58")
"""SQLSTATE classes: failed connections, aborted transactions, missing resources, shutdowns and system errors."""
MYSQL_CODES = frozenset({1021, 1040, 1053, 1114, 1203, 1205, 1213, 1927, 2002, 2003, 2005, 2006, 2013, 2055})
"""Codes of MariaDB and MySQL: full disks, too many connections, a shutdown, locks, no connection, lost connections."""
SQLITE_TEXTS = ("database is locked", "database table is locked", "database or disk is full", "disk I/O error")
STATUS_ERRORS = ("ServerError", "ServiceUnavailableError")
"""Names of the errors that pyiceberg raises when a catalog answers that it cannot work now."""


def is_outage(error: BaseException) -> bool:
    """Return whether `error` says that a server, a connection or a disk does not work now."""
    original = getattr(error, "orig", None)  # in an SQLAlchemy error, `orig` is the error of the database driver
    if isinstance(original, BaseException):
        return bool(getattr(error, "connection_invalidated", False)) or is_outage_of_database(original)
    if type(error).__name__ in STATUS_ERRORS or isinstance(error, ConnectionError | TimeoutError):
        return True
    is_from_requests = type(error).__module__.startswith("requests.")
    return is_from_requests and type(error).__name__ in {"ConnectionError", "ConnectTimeout", "ReadTimeout", "Timeout"}


def is_outage_of_database(original: Any) -> bool:
    if type(original).__name__ not in {"OperationalError", "InterfaceError", "InternalError"}:
        return False
    for name in ("sqlstate", "pgcode"):  # psycopg, psycopg2
        if hasattr(original, name) and type(original).__module__.startswith("psycopg"):
            state = getattr(original, name)
            return state is None or state.startswith(POSTGRESQL_CLASSES)  # None: there was no connection
    code = original.args[0] if getattr(original, "args", None) else None
    return code in MYSQL_CODES or any(text in str(original) for text in SQLITE_TEXTS)
