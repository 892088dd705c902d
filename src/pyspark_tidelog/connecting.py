"""Connect a query to its brokers, in any of Spark's processes."""

import logging

from pyspark_tidelog.options import ReadOptions, WriteOptions
from tidelog.client.blocking import Client

logger = logging.getLogger("tidelog.spark")


def connect(options: ReadOptions | WriteOptions) -> Client:
    """Return a client that logs a warning when it waits for the brokers, because Spark shows nothing while a query
    waits.
    """
    return Client(options.bootstrap, options.client, report_outage=logger.warning)
