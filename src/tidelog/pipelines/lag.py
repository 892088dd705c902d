"""Measure how far queries are behind, by asking the brokers for the ends of the topics' partitions.

A thread does it: Spark's own reports come only after a micro-batch, and a broker that does not answer must not hold up
the display.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

from tidelog.client.blocking import Client, ClientConfig
from tidelog.client.operations import LATEST, READ_COMMITTED, FetchLimits
from tidelog.model.ids import TopicPartition
from tidelog.pipelines.declarations import Pipeline
from tidelog.pipelines.status import QueryStatus
from tidelog.pipelines.topics import Topic
from tidelog.runtime.clock import SystemClock
from tidelog.wire.batches import BatchHeader

INTERVAL_S = 2.0
CONFIG = ClientConfig(client_id="tidelog-pipeline-lag", default_api_timeout_ms=5_000)


class LagMonitor:
    """Sets `lag_records` and `lag_ms` of the queries' figures until `close`."""

    def __init__(
        self, bootstrap: str, pipelines: Sequence[Pipeline], queries: Callable[[], Sequence[QueryStatus]]
    ) -> None:
        self._bootstrap = bootstrap
        self._servers = topic_servers(pipelines)
        self._queries = queries
        self._clients: dict[str, Client] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            for query in self._queries():
                if query.offsets:
                    query.lag_records, query.lag_ms = self.measure(query.offsets)

    def measure(self, offsets: Mapping[str, Mapping[str, int]]) -> tuple[int | None, int | None]:
        """Return the number of records from these offsets to the ends, and the age of the oldest one in milliseconds.

        Both are None if the brokers do not answer. The number counts offsets, which compaction and transactions leave
        without records.
        """
        records, oldest_ms = 0, None
        try:
            for topic, partitions in offsets.items():
                client = self._client(self._servers.get(topic, self._bootstrap))
                positions = {TopicPartition(topic, int(number)): offset for number, offset in partitions.items()}
                ends = client.list_offsets(dict.fromkeys(positions, LATEST), READ_COMMITTED)
                for tp, offset in positions.items():
                    missing = max(ends[tp].offset - offset, 0)
                    records += missing
                    timestamp_ms = self._timestamp_ms(client, tp, offset) if missing else None
                    if timestamp_ms is not None:
                        oldest_ms = timestamp_ms if oldest_ms is None else min(oldest_ms, timestamp_ms)
        except Exception:  # whatever happens, the lag is then unknown, and the next measurement may succeed
            return None, None
        if records == 0:
            return 0, 0
        return records, None if oldest_ms is None else max(SystemClock.now_ms() - oldest_ms, 0)

    def _timestamp_ms(self, client: Client, partition: TopicPartition, offset: int) -> int | None:
        """Return the first timestamp of the batch that contains the offset; None if the broker returns no batch."""
        # The smallest limits are enough, because a broker always returns at least one whole batch (KIP-74).
        limits = FetchLimits(max_wait_ms=0, max_bytes=1, partition_max_bytes=1)
        records = client.fetch(partition, offset, limits).records
        return BatchHeader(records).first_timestamp_ms if records else None

    def _client(self, bootstrap: str) -> Client:
        if bootstrap not in self._clients:
            self._clients[bootstrap] = Client(bootstrap, CONFIG)
        return self._clients[bootstrap]

    def close(self) -> None:
        self._stop.set()
        self._thread.join(CONFIG.default_api_timeout_ms / 1000)
        for client in self._clients.values():
            client.close()


def topic_servers(pipelines: Sequence[Pipeline]) -> dict[str, str]:
    """Return the brokers of the topics whose sources name brokers of their own."""
    return {
        name: source.bootstrap
        for each in pipelines
        for source in each.sources.values()
        if isinstance(source, Topic) and source.bootstrap is not None
        for name in source.names
    }
