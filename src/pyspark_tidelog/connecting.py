"""The connection of a query to its brokers, in whichever process of Spark."""

import logging

from pyspark_tidelog.options import ReadOptions, WriteOptions
from tidelog.client.blocking import Client

logger = logging.getLogger("tidelog.spark")


def connect(options: ReadOptions | WriteOptions) -> Client:
    """A client that says on stderr for what it waits: Spark shows nothing of a query that only waits."""
    return Client(options.bootstrap, options.client, tell=logger.warning)
