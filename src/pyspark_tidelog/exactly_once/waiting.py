"""Errors of waits that took too long. Each wait has the same time limit as one call of the client."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_tidelog.errors import WriteError
from pyspark_tidelog.exactly_once.decision import BatchIdentity
from tidelog.client.errors import GaveUp

REMEDY = (
    "check that the brokers are up, then run the query again; if they need longer, raise option "
    "kafka.default.api.timeout.ms, the time limit of each wait"
)


@contextmanager
def named_wait(identity: BatchIdentity, problem: str) -> Iterator[None]:
    """In place of GaveUp, raise a WriteError whose message names the micro-batch, the problem, the cause and the
    remedy.
    """
    try:
        yield
    except GaveUp as error:
        raise WriteError(f"{identity}: {problem}: {error}; {REMEDY}") from error
