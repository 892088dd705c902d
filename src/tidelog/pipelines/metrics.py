"""Serve the metrics of pipelines over HTTP, in the text format of Prometheus."""

import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tidelog.pipelines.declarations import PipelineError
from tidelog.pipelines.status import RUNNING, PipelineStatus, QueryStatus

QUERY_METRICS: dict[str, tuple[str, str, Callable[[QueryStatus], float | None]]] = {
    "batches_total": ("counter", "Micro-batches that were processed.", lambda q: q.batches),
    "rows_total": ("counter", "Rows that were read.", lambda q: q.rows),
    "rows_per_second": ("gauge", "Rows per second of the newest micro-batch.", lambda q: q.rows_per_s),
    "batch_seconds": ("gauge", "Duration of the newest micro-batch.", lambda q: q.batch_ms / 1000),
    "lag_records": ("gauge", "Records that are not processed yet.", lambda q: q.lag_records),
    "lag_seconds": (
        "gauge",
        "Age of the oldest record that is not processed yet.",
        lambda q: None if q.lag_ms is None else q.lag_ms / 1000,
    ),
    "state_rows": ("gauge", "Rows in the state of aggregations, joins and deduplications.", lambda q: q.state_rows),
    "state_bytes": ("gauge", "Memory of the state, in bytes.", lambda q: q.state_bytes),
    "late_rows_total": (
        "counter",
        "Rows that were dropped because they were older than the watermark.",
        lambda q: q.late_rows,
    ),
    "dead_letters_total": (
        "counter",
        "Records that could not be parsed, and were not processed.",
        lambda q: q.dead_letters,
    ),
}
"""Type, help text and value of each metric of a query. The keys are the metrics' names without PREFIX."""
PREFIX = "tidelog_pipeline_"


def exposition(statuses: Sequence[PipelineStatus]) -> str:
    """Return all metrics as text. A metric without a known value is left out."""
    lines = []
    pipeline_metrics: dict[str, tuple[str, str, Callable[[PipelineStatus], float]]] = {
        "up": (
            "gauge",
            "1 if the pipeline runs, 0 if it is still starting, waits for a restart or has ended.",
            lambda p: p.state == RUNNING,
        ),
        "restarts_total": ("counter", "Restarts after failures.", lambda p: p.restarts),
    }
    for name, (kind, text, value) in pipeline_metrics.items():
        lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]
        lines += [f'{PREFIX}{name}{{pipeline="{each.pipeline}"}} {value(each):g}' for each in statuses]
    for name, (kind, text, query_value) in QUERY_METRICS.items():
        lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]
        for each in statuses:
            for query in each.queries:
                number = query_value(query)
                if number is not None:
                    labels = f'pipeline="{each.pipeline}",sink="{query.sink}"'
                    lines.append(f"{PREFIX}{name}{{{labels}}} {_number_text(number)}")
    return "\n".join(lines) + "\n"


def _number_text(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.3f}"


class MetricsServer:
    """Answers GET /metrics, and GET / in the same way, until `close`."""

    def __init__(self, port: int, statuses: Callable[[], Sequence[PipelineStatus]], host: str = "127.0.0.1") -> None:
        """Raises PipelineError if the port cannot be opened. Port 0 selects a free port."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.partition("?")[0] not in ("/metrics", "/"):
                    self.send_error(404, "only / and /metrics exist")
                    return
                body = exposition(statuses()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Log nothing, because Prometheus sends a request every few seconds."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise PipelineError(f"--metrics-port: port {port} cannot be opened: {error.strerror}") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
