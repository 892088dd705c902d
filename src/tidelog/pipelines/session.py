"""The Spark session in which pipelines run."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tidelog.pipelines.declarations import Pipeline, PipelineError
from tidelog.pipelines.failures import first_line
from tidelog.pipelines.stopping import SPARK_STOP_MAX_S, SPARK_STOP_TIMEOUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.scheduler.mode": "FAIR",  # so that a large micro-batch does not delay the other pipelines
    "spark.sql.session.timeZone": "UTC",
    SPARK_STOP_TIMEOUT: f"{SPARK_STOP_MAX_S}s",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def start_session(
    pipelines: Sequence[Pipeline],
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> "SparkSession":
    """Start Spark for these pipelines. `settings` override the settings of the pipelines. With `log`, Spark and its
    workers write to this file instead of stderr.

    Raises PipelineError if PySpark or Java is missing, or if two pipelines need different values of one setting that
    all pipelines of a Spark application share.
    """
    try:
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession

        from pyspark_tidelog.java import NoJava, ensure_java
        from pyspark_tidelog.session import local_session
    except ImportError as error:
        raise PipelineError(f"pipelines need {error.name}: pip install 'tidelog[spark]'") from None
    name = "tidelog " + (pipelines[0].name if len(pipelines) == 1 else f"{len(pipelines)} pipelines")
    merged = SETTINGS | merged_settings(pipelines) | dict(settings or {})

    def start() -> "SparkSession":
        if master.startswith("local"):
            return local_session(name, cores=local_cores(master), settings={"spark.master": master} | merged)
        if "JAVA_HOME" not in os.environ:
            os.environ["JAVA_HOME"] = str(ensure_java())
        choose_python_of_cluster()
        builder = SparkSession.Builder().appName(name).master(master)
        for key, value in merged.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()

    with contextlib.ExitStack() as stack:
        if log is not None:
            stack.enter_context(stderr_to(log))
        try:
            return start()
        except NoJava as error:
            raise PipelineError(str(error)) from None
        except Exception as error:
            reason = first_line(str(error)) or type(error).__name__
            where = f"; Spark's log is {log}" if log is not None else ""
            raise PipelineError(f"Spark does not start: {reason}{where}") from error


@contextlib.contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Redirect this process's stderr to the end of `log` until the `with` block ends. Processes that are started in the
    block write to `log` even after the block.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    own_stderr = os.dup(2)
    try:
        with open(log, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(own_stderr, 2)
        os.close(own_stderr)


def choose_python_of_cluster() -> None:
    """Set PYSPARK_PYTHON, the name by which Spark starts Python on all machines, unless it is set. An example of the
    name is `python3.11`.

    Spark uses the same text for the workers of the driver and of the executors. It is a name and not a path, because
    the path of this process's Python may not exist on other machines. Each machine looks the name up in its PATH. In
    this process, the directory of its own Python becomes the first one of the PATH.
    """
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = f"python{sys.version_info.major}.{sys.version_info.minor}"
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["PYSPARK_PYTHON"]


def local_cores(master: str) -> int:
    """Return the number of cores of `local`, `local[N]` and `local[*]`."""
    text = master.removeprefix("local").strip("[]").partition(",")[0]
    return int(text) if text.isdecimal() else 1 if not text else os.cpu_count() or 2


def merged_settings(pipelines: Sequence[Pipeline]) -> dict[str, str]:
    """Return the settings that the pipelines share. Several pipelines do not share settings of Spark's SQL, because
    each has a session of its own (`pipeline_session`). Raises PipelineError if pipelines give a shared setting
    different values.
    """
    merged: dict[str, str] = {}
    owners: dict[str, str] = {}
    for each in pipelines:
        for key, value in each.settings.items():
            if key.startswith("spark.sql.") and len(pipelines) > 1:
                continue
            if merged.setdefault(key, value) != value:
                raise PipelineError(
                    f"pipelines {owners[key]} and {each.name} set {key} to {merged[key]!r} and {value!r}: they run in"
                    " one Spark application, so give them the same value or run them separately"
                )
            owners.setdefault(key, each.name)
    return merged


def pipeline_session(
    spark: "SparkSession", pipeline: Pipeline, overrides: Mapping[str, str] = MappingProxyType({})
) -> "SparkSession":
    """Return a session with the pipeline's own settings of Spark's SQL: `spark` itself if it has them, otherwise a new
    session of the same application. `overrides`, the settings of the run, replace settings of the pipeline.
    The session becomes the active one of this thread.
    """
    session = _session_with(spark, pipeline, overrides)
    # In Spark, each thread has its own active session. Functions of Spark that get no session use the active one.
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    return session


def _session_with(spark: "SparkSession", pipeline: Pipeline, overrides: Mapping[str, str]) -> "SparkSession":
    defaults = {key: value for key, value in SETTINGS.items() if key.startswith("spark.sql.")}
    wanted = {
        key: value
        for key, value in (defaults | dict(pipeline.settings) | dict(overrides)).items()
        if spark.conf.isModifiable(key)
    }
    # A new session costs some seconds, because Spark looks up its Python data sources again.
    if all(spark.conf.get(key, None) == value for key, value in wanted.items()):
        return spark
    session = spark.newSession()
    for key, value in wanted.items():
        session.conf.set(key, value)
    return session
