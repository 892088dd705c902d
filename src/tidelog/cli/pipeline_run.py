"""`tidelog pipeline run`: start Spark, run the pipelines until they end or a signal arrives, and show their figures."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidelog.cli.app import INTERRUPTED
from tidelog.cli.interrupts import record_interrupts
from tidelog.cli.pipeline_view import LineView, LiveView, PipelineView
from tidelog.pipelines.declarations import Pipeline
from tidelog.pipelines.status import FAILED

if TYPE_CHECKING:
    from tidelog.pipelines.running import Run

STEP_S = 0.25
"""Pause between two updates of the figures, in seconds."""
STATUS_EVERY_S = 1.0
"""Time between two writes of the status files, in seconds."""
GRACE_S = 60.0
"""How long the running micro-batches may continue after a signal, in seconds."""
SPARK_LOG = "spark.log"
"""Name of the log file of Spark and its workers, which is in the state directory."""
ARCHIVE_DIRECTORY = "tidelog-packages"
"""Name of the directory into which an executor unpacks the archive of `tidelog pipeline pack`."""


class RunPlan(NamedTuple):
    """The arguments and options of `tidelog pipeline run`."""

    pipelines: Sequence[Pipeline]
    bootstrap: str
    state: Path
    once: bool
    begin: str | int | None
    master: str
    checkpoints: str | None
    archive: Path | None
    metrics_port: int | None
    settings: Mapping[str, str]
    spark_log: str
    """The level of Spark's log, for example ERROR."""
    json: bool


def run_pipelines(plan: RunPlan) -> list[str]:
    """Run the pipelines until all have ended or a signal arrives. Return the errors of the pipelines that failed.

    Raises PipelineError if Spark cannot start, or if another process runs one of the pipelines.
    """
    from tidelog.pipelines.session import start_session

    view: PipelineView = LiveView() if sys.stdout.isatty() and not plan.json else LineView(json=plan.json)
    if sys.stderr.isatty():
        print(f"Starting Spark ({plan.master}) ...", file=sys.stderr)
    log = plan.state / SPARK_LOG
    spark = start_session(plan.pipelines, plan.master, archive_settings(plan.archive) | dict(plan.settings), log)
    with ExitStack() as stack:
        # `record_interrupts` is entered first, so it ends last. At its end it raises a received SIGTERM again:
        # the process ends only after the run and Spark have ended.
        interrupts = stack.enter_context(record_interrupts())
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel(plan.spark_log)
        from tidelog.pipelines.lag import LagMonitor
        from tidelog.pipelines.metrics import MetricsServer
        from tidelog.pipelines.running import Run

        run = Run(
            plan.pipelines,
            spark,
            bootstrap=plan.bootstrap,
            state=plan.state,
            once=plan.once,
            begin=plan.begin,
            checkpoints=plan.checkpoints,
            settings=plan.settings,
        )
        stack.enter_context(run)
        if plan.metrics_port is not None:
            server = MetricsServer(plan.metrics_port, lambda: run.statuses)
            stack.callback(server.close)
            print(f"Metrics: http://localhost:{server.port}/metrics", file=sys.stderr, flush=True)
        monitor = LagMonitor(lambda: run.statuses)
        stack.callback(monitor.close)
        stack.enter_context(view)
        view.show(run.statuses)  # the start takes some seconds
        run.start()
        status_at_s = time.monotonic()
        while not run.has_ended and not interrupts():
            run.step()
            view.show(run.statuses)
            if time.monotonic() >= status_at_s:
                run.write_status()
                status_at_s = time.monotonic() + STATUS_EVERY_S
            time.sleep(STEP_S)
        if not run.has_ended:
            stop(run, view)
        monitor.finish()
        view.show(run.statuses)
        return [each.error or f"pipeline {each.pipeline} failed" for each in run.statuses if each.state == FAILED]


def stop(run: "Run", view: PipelineView) -> None:
    """Let the running micro-batches end, and interrupt them after GRACE_S. At a second signal, end the process."""
    note = "Stopping: the running micro-batches end first. Press Ctrl-C again to stop at once."
    try:
        run.stop(GRACE_S, lambda: view.show(run.statuses, note))
    except KeyboardInterrupt:
        # To stop a query can take as long as its micro-batch. So the process ends without stopping its queries, as
        # after `kill -9`. Spark ends with the process.
        view.__exit__()
        run.write_status()
        sys.stdout.flush()
        os._exit(INTERRUPTED)


def archive_settings(archive: Path | None) -> dict[str, str]:
    """Return Spark's settings that send the archive to the executors and make its packages importable there."""
    if archive is None:
        return {}
    return {
        "spark.archives": f"{os.path.abspath(archive)}#{ARCHIVE_DIRECTORY}",  # noqa: PTH100 - keeps symbolic links
        "spark.executorEnv.PYTHONPATH": ARCHIVE_DIRECTORY,
    }
