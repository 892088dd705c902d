"""Measure how far queries are behind, by asking the brokers for the ends of the topics' partitions.

Spark's own reports come only after a micro-batch, so the brokers are asked every INTERVAL_S. The requests are sent in a
thread of their own, because a broker that does not answer must not stop the display.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

from tidelog.client.blocking import Client, ClientConfig
from tidelog.client.operations import LATEST, READ_COMMITTED, FetchLimits
from tidelog.model.ids import TopicPartition
from tidelog.pipelines.status import PipelineStatus
from tidelog.runtime.clock import SystemClock
from tidelog.wire.batches import BatchHeader

INTERVAL_S = 2.0
CONFIG = ClientConfig(client_id="tidelog-pipeline-lag", default_api_timeout_ms=5_000)


class LagMonitor:
    """Sets `lag_records` and `lag_ms` of the queries' figures until `finish` or `close`."""

    def __init__(self, statuses: Callable[[], Sequence[PipelineStatus]]) -> None:
        """`statuses` returns the figures of the pipelines whose lags are measured."""
        self._statuses = statuses
        self._clients: dict[str, Client] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        """Held while the thread checks `_stop` and stores a result, and while `finish` sets `_stop`."""
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            for status in self._statuses():
                for query in status.queries:
                    if query.offsets:
                        measured = self.measure(query.offsets)
                        with self._lock:
                            if self._stop.is_set():
                                return  # `finish` may have ended without this measurement, and set the lag to None
                            query.lag_records, query.lag_ms = measured

    def finish(self) -> None:
        """Measure once more after the queries have ended, because the previous measurement may be older than their
        last micro-batches. If the brokers do not answer, the lag is unknown.
        """
        with self._lock:
            self._stop.set()
        self._thread.join(CONFIG.default_api_timeout_ms / 1000)
        has_answer = not self._thread.is_alive()
        for status in self._statuses():
            for query in status.queries:
                query.lag_records, query.lag_ms = None, None
                if query.offsets and has_answer:
                    query.lag_records, query.lag_ms = self.measure(query.offsets)
                    # If the brokers did not answer, each further measurement would also wait until its timeout.
                    has_answer = query.lag_records is not None

    def measure(self, offsets: Mapping[str, Mapping[str, Mapping[str, int]]]) -> tuple[int | None, int | None]:
        """Return the number of records from these offsets to the ends of the partitions, and the age of the oldest of
        these records in milliseconds. `offsets` is indexed by brokers, topic and partition, in this order.

        Both are None after any error, for example if the brokers do not answer. The number is a difference of offsets:
        after compaction and transactions, it is higher than the real number of records.
        """
        records, oldest_ms = 0, None
        try:
            for servers, topics in offsets.items():
                client = self._client(servers)
                positions = {
                    TopicPartition(topic, int(number)): offset
                    for topic, partitions in topics.items()
                    for number, offset in partitions.items()
                }
                ends = client.list_offsets(dict.fromkeys(positions, LATEST), READ_COMMITTED)
                for tp, offset in positions.items():
                    missing = max(ends[tp].offset - offset, 0)
                    records += missing
                    timestamp_ms = self._timestamp_ms(client, tp, offset) if missing else None
                    if timestamp_ms is not None:
                        oldest_ms = timestamp_ms if oldest_ms is None else min(oldest_ms, timestamp_ms)
        except Exception:  # The lag is unknown after any error, and the next measurement may succeed.
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
