"""Settings of each session with a database: its time zone, whether it is strict, and when transactions begin."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Engine

MYSQL = "SET time_zone = '+00:00', sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')"
STATEMENTS = {"mariadb": MYSQL, "mysql": MYSQL, "postgresql": "SET TIME ZONE 'UTC'"}
"""For each dialect of SQLAlchemy, the first statement of each session. SQLite needs none: it has no time zones."""


def prepare_sessions(engine: "Engine") -> None:
    """Make the sessions of `engine` use UTC and refuse values that do not fit a column. For SQLite, make each
    transaction begin before its first statement instead.
    """
    dialect = engine.dialect.name
    if dialect == "sqlite":
        _begin_transactions_explicitly(engine)
    elif dialect in STATEMENTS:
        _begin_sessions(engine, STATEMENTS[dialect])


def _begin_sessions(engine: "Engine", statement: str) -> None:
    """Set the time zone of each session to UTC, whatever the server, the role or the database prescribe.

    The session's time zone decides which moment a time in a `timestamp` column stands for. MariaDB and MySQL convert
    the time from and to the session's time zone. If the column has no time zone but the written time has one,
    PostgreSQL converts the time to the session's time zone. In strict mode, MariaDB and MySQL refuse a text that is too
    long and a number that is out of range; otherwise they would store a shorter text or the nearest possible number.
    """
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.close()
        connection.commit()  # PostgreSQL undoes the setting if its transaction is rolled back


def _begin_transactions_explicitly(engine: "Engine") -> None:
    """Let each transaction of SQLite begin before its first statement. A statement waits up to 30 s for other writers.

    Python's sqlite3 alone would begin a transaction only before the first statement that changes rows. Earlier reads
    and earlier statements that create tables would then not be part of the transaction.
    """
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA busy_timeout = 30000")

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
