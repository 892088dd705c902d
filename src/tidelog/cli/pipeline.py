"""The commands `tidelog pipeline`: run, list, status, replay, reset, dry-run, new, pack."""

import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.connection import LOCALHOST, AsJson, Bootstrap, check_reachable, host_ports, key_values
from tidelog.cli.errors import CommandError, UsageError, raise_together
from tidelog.cli.tables import Column, Table, print_json, print_notes, print_table
from tidelog.cli.when import NotATimeError, duration_text, parse_time_ms
from tidelog.model.addresses import host_port_text
from tidelog.pipelines.begins import check_begin
from tidelog.pipelines.declarations import Pipeline, PipelineError
from tidelog.pipelines.loading import load
from tidelog.pipelines.state import DEFAULT_STATE, PipelineState, stored_pipelines

if TYPE_CHECKING:
    from tidelog.pipelines.status import PipelineStatus

app = typer.Typer(add_completion=False, no_args_is_help=True)

Reference = Annotated[
    str, typer.Argument(metavar="FILE[:NAME]", show_default=False, help="A Python file, or one pipeline in it.")
]
References = Annotated[
    list[str], typer.Argument(metavar="FILE[:NAME]...", show_default=False, help="Python files, or pipelines in them.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The pipeline's name.")]
StateOption = Annotated[
    Path, typer.Option("--state", metavar="DIR", file_okay=False, help="Directory of checkpoints and figures.")
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        show_default=False,
        help='Where to begin: earliest, latest, or a time such as "2 hours ago".',
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="Where Spark runs: local[N], spark://HOST:PORT, k8s://...")
]
SparkSettings = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", show_default=False, help="A setting of Spark; repeatable.")
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints",
        metavar="URI",
        show_default=False,
        help="Directory for checkpoints that all executors can reach (hdfs://..., s3a://...).",
    ),
]
Archive = Annotated[
    Path | None,
    typer.Option(
        "--archive",
        metavar="FILE",
        show_default=False,
        help="Archive of packages to send to the executors; `tidelog pipeline pack` writes one.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        min=0,
        max=65535,
        show_default=False,
        help="Serve http://localhost:PORT/metrics.",
    ),
]
SparkLog = Annotated[
    str,
    typer.Option(
        "--spark-log", metavar="LEVEL", help="Log level of spark.log in the state directory: OFF, ERROR, WARN, INFO."
    ),
]


@app.callback()
def pipeline() -> None:
    """Run PySpark functions between topics, lakes and databases.

    Examples:

    $ tidelog pipeline new sales
    $ tidelog pipeline dry-run sales.py
    $ tidelog pipeline run sales.py
    $ tidelog pipeline status
    """


def load_pipelines(references: list[str]) -> list[Pipeline]:
    """Load the pipelines. Raises CommandError if one cannot be loaded, or if two have the same name."""
    pipelines, failures = load_each(references)
    raise_together(failures)
    return pipelines


def load_each(references: list[str]) -> tuple[list[Pipeline], list[CommandError]]:
    """Load the pipelines that can be loaded, and return the failures of the others. If two pipelines have the same
    name, the second one is a failure.
    """
    pipelines: dict[str, Pipeline] = {}
    failures: list[CommandError] = []
    for reference in references:
        try:
            found = load(reference)
        except PipelineError as error:
            failures.append(CommandError(str(error)))
            continue
        for each in found:
            if each.name in pipelines:
                failures.append(CommandError(f"two pipelines are named {each.name}: give one of them another name=..."))
            else:
                pipelines[each.name] = each
    return list(pipelines.values()), failures


def as_command(call: Any, *arguments: Any, **named: Any) -> Any:
    """Call a function of tidelog.pipelines. Its PipelineError becomes a CommandError."""
    try:
        return call(*arguments, **named)
    except PipelineError as error:
        raise CommandError(str(error)) from error


def servers(bootstrap: str) -> str:
    """Return the addresses with their ports. Raises UsageError for a malformed address."""
    return ",".join(host_port_text(host, port) for host, port in host_ports(bootstrap))


def needs_brokers(pipeline: Pipeline, *, writes: bool) -> bool:
    """Return whether the pipeline uses the brokers of --bootstrap. If `writes` is False, only its sources are
    considered.
    """
    from tidelog.pipelines.mirrors import Mirror
    from tidelog.pipelines.topics import Topic

    used = [*pipeline.sources.values(), *(pipeline.sinks.values() if writes else ())]
    return (writes and pipeline.dead_letters is not None) or any(
        (isinstance(each, Topic) and each.bootstrap is None)
        or (writes and isinstance(each, Mirror) and each.target is None)
        for each in used
    )


def parse_begin(text: str | None) -> str | int | None:
    """Parse --from. Raises UsageError."""
    if text is None or text in ("earliest", "latest"):
        return text
    try:
        return parse_time_ms(text, datetime.now())
    except NotATimeError as error:
        raise UsageError(f"--from: {error}; also accepted: earliest, latest") from None


@app.command("run")
def run_command(
    references: References,
    once: Annotated[bool, typer.Option("--once", help="Process the data that exist now, then end.")] = False,
    begin: From = None,
    master: Master = "local[*]",
    state: StateOption = DEFAULT_STATE,
    checkpoints: Checkpoints = None,
    archive: Archive = None,
    metrics_port: MetricsPort = None,
    settings: SparkSettings = [],  # noqa: B006
    spark_log: SparkLog = "ERROR",
    json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each micro-batch and change of state.")
    ] = False,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Run pipelines until Ctrl-C, in one Spark application.

    A pipeline continues where it ended; its checkpoints are in the state
    directory. --from applies to pipelines that have no state yet. A pipeline
    that fails is started again after a pause; the others continue. After
    Ctrl-C or SIGTERM, the running micro-batches end before the command ends;
    after a second signal, the command ends at once.

    Examples:

    $ tidelog pipeline run sales.py
    $ tidelog pipeline run sales.py:totals --once --from "1 day ago"
    $ tidelog pipeline run sales.py --master spark://host:7077 --archive packages.tar.gz
    """
    from tidelog.cli.pipeline_run import RunPlan, run_pipelines

    if archive is not None and not archive.is_file():
        raise UsageError(f"--archive {archive}: there is no such file; write it with `tidelog pipeline pack {archive}`")
    pipelines = load_pipelines(references)
    addresses = servers(bootstrap)
    first = parse_begin(begin)
    if any(needs_brokers(each, writes=True) for each in pipelines):
        check_reachable(bootstrap)
    states = [PipelineState(state, each.name) for each in pipelines]
    with_state = [each.pipeline for each in states if (i := each.identity()) is not None and each.has_started(i)]
    if first is not None and with_state:
        print_notes(
            [f"{name} continues from its state; to begin at another time: tidelog pipeline replay {name} --from TIME"
             for name in with_state]
        )  # fmt: skip
    plan = RunPlan(
        pipelines=pipelines,
        bootstrap=addresses,
        state=state,
        once=once,
        begin=first,
        master=master,
        checkpoints=checkpoints,
        archive=archive,
        metrics_port=metrics_port,
        settings=key_values(settings, "--set", "spark.executor.memory=2g"),
        spark_log=spark_log.upper(),
        json=json,
    )
    failed = as_command(run_pipelines, plan)
    if failed:
        raise CommandError("; ".join(failed))


@app.command("list")
def list_command(references: References, json: AsJson = False) -> None:
    """List the pipelines of Python files. Spark is not started.

    Examples:

    $ tidelog pipeline list sales.py
    """
    pipelines, failures = load_each(references)
    if json:
        print_json([declaration_json(each) for each in pipelines])
    elif pipelines:
        print_table(declarations_table(pipelines))
    sys.stdout.flush()
    raise_together(failures)


def declarations_table(pipelines: list[Pipeline]) -> Table:
    columns = [Column("Pipeline"), Column("Reads"), Column("Writes"), Column("Every", spare=1)]
    columns += [Column("Mode", spare=3), Column("Dead letters", spare=2)]
    rows = [
        [
            each.name,
            ", ".join(source.describe() for source in each.sources.values()),
            ", ".join(sink.describe() for sink in each.sinks.values()),
            each.trigger,
            each.output_mode,
            each.dead_letters or "-",
        ]
        for each in pipelines
    ]
    return Table(columns, rows)


def declaration_json(each: Pipeline) -> dict[str, Any]:
    return {
        "pipeline": each.name,
        "sources": {name: source.describe() for name, source in each.sources.items()},
        "sinks": {name: sink.describe() for name, sink in each.sinks.items()},
        "trigger": each.trigger,
        "output_mode": each.output_mode,
        "dead_letters": each.dead_letters,
        "settings": shown_settings(each.settings),
    }


def shown_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Spark. The values of secret settings, such as access keys of object stores, are hidden."""
    from tidelog.pipelines.sinks.object_errors import HIDDEN, SECRET_NAME, without_secrets

    return {
        name: HIDDEN if SECRET_NAME.search(name) else without_secrets(value, settings.items())
        for name, value in settings.items()
    }


@app.command("status")
def status_command(state: StateOption = DEFAULT_STATE, json: AsJson = False) -> None:
    """Show the newest figures of the pipelines in a state directory.

    Examples:

    $ tidelog pipeline status
    $ tidelog pipeline status --json
    """
    from tidelog.cli.pipeline_view import error_lines, status_table
    from tidelog.pipelines.status import status_of_document

    statuses: list[PipelineStatus] = []
    documents = []
    problems = []
    for each in stored_pipelines(state):
        is_running = each.is_running()
        try:
            document = each.read_status() or {"pipeline": each.pipeline, "state": "stopped"}
            status = status_of_document(document)
        except (PipelineError, ValueError) as error:
            problems.append(f"the figures of pipeline {each.pipeline} cannot be shown: {error}")
            document = {"pipeline": each.pipeline, "state": "unknown", "problem": str(error)}
            status = status_of_document(document)
        if not is_running and status.state in ("starting", "running", "waiting"):
            status.state = "ended"  # the process was killed before it could write its last state
        documents.append(document | {"state": status.state, "process": is_running})
        statuses.append(status)
    if json:
        print_json(documents)
        print_notes(problems)
        return
    if not statuses:
        print(f"No pipeline has run with the state directory {state}.", file=sys.stderr)
        return
    # `tidelog pipeline run` redraws its table, so each row must be one line there. Here a row may have several lines.
    print_table(status_table(statuses)._replace(json=True, shorten=False))
    print_notes([*error_lines(statuses), *problems])


@app.command("replay")
def replay_command(
    name: Name,
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", show_default=False, help="earliest, latest, or a time.")
    ],
    state: StateOption = DEFAULT_STATE,
    yes: Yes = False,
) -> None:
    """Let the next run process a pipeline's data again, from a time on.

    The checkpoint is removed, and with it the state of aggregations and
    joins. The rows in the sinks remain: a topic or an appending sink gets
    the same rows again.

    Examples:

    $ tidelog pipeline replay sales --from "2 hours ago"
    """
    first = parse_begin(begin)
    pipeline_state = existing_state(state, name)
    confirm(f"Remove the checkpoint of {name}, and let the next run begin at {begin}?", yes)
    as_command(begin_again, pipeline_state, first)
    print_notes(remaining_checkpoints(pipeline_state))
    print(f"The next run of {name} begins at {begin}.")


@app.command("reset")
def reset_command(name: Name, state: StateOption = DEFAULT_STATE, yes: Yes = False) -> None:
    """Remove a pipeline's checkpoint.

    The next run begins where the declaration says. The rows in the sinks
    remain.

    Examples:

    $ tidelog pipeline reset sales
    """
    pipeline_state = existing_state(state, name)
    confirm(f"Remove the checkpoint of {name}? The next run begins where the declaration says.", yes)
    as_command(begin_again, pipeline_state, None, forget=True)
    print_notes(remaining_checkpoints(pipeline_state))
    print(f"The state of {name} was removed.")


def begin_again(state: PipelineState, begin: str | int | None, *, forget: bool = False) -> None:
    """Remove the checkpoints. If `forget` is False, store where the next run begins. Raises PipelineError, and removes
    nothing, if the pipeline is running, or if a source cannot begin there.
    """
    state.lock()
    try:
        if begin is not None:
            check_begin(state.pipeline, state.accepted_begins(), begin)
        state.reset()
        if not forget:
            state.create_identity(begin)
    finally:
        state.unlock()


def remaining_checkpoints(state: PipelineState) -> list[str]:
    """Return notes about the checkpoints that could not be removed."""
    places = dict.fromkeys(each.place for each in state.obsolete())
    return [f"the old checkpoint in {place} is removed by the next run of {state.pipeline}" for place in places]


def existing_state(base: Path, name: str) -> PipelineState:
    state = PipelineState(base, name)
    if not state.exists:
        names = ", ".join(each.pipeline for each in stored_pipelines(base)) or "none"
        raise CommandError(
            f"pipeline {name} has no state in {base} (pipelines with a state there: {names}); choose another"
            " directory with --state"
        )
    return state


def confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "the removal of the checkpoint cannot be confirmed, because stdin is not a terminal: add --yes"
        )
    typer.confirm(question, abort=True)


@app.command("dry-run")
def dry_run_command(
    reference: Reference,
    rows: Annotated[
        int, typer.Option("--rows", "-n", metavar="N", min=1, help="Records to read from each source.")
    ] = 1000,
    show: Annotated[int, typer.Option("--show", metavar="N", min=1, help="Rows of the result to print.")] = 20,
    begin: From = None,
    settings: SparkSettings = [],  # noqa: B006
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Run a pipeline on a sample and print its result. Nothing is written.

    The sample is read as one batch, so an aggregation is computed once,
    from all rows of the sample.

    Examples:

    $ tidelog pipeline dry-run sales.py:totals
    $ tidelog pipeline dry-run sales.py:totals --rows 100 --from "1 hour ago"
    """
    from tidelog.cli.pipeline_dry_run import dry_run

    pipelines = load_pipelines([reference])
    if len(pipelines) > 1:
        names = ", ".join(each.name for each in pipelines)
        raise UsageError(
            f"{reference} has several pipelines ({names}): choose one, for example {reference}:{pipelines[0].name}"
        )
    addresses = servers(bootstrap)
    first = parse_begin(begin)
    if needs_brokers(pipelines[0], writes=False):
        check_reachable(bootstrap)
    spark_settings = key_values(settings, "--set", "spark.driver.memory=2g")
    as_command(dry_run, pipelines[0], addresses, rows, show, first, spark_settings)


@app.command("new")
def new_command(
    name: Name,
    directory: Annotated[Path, typer.Option("--directory", metavar="DIR", help="Where to write NAME.py.")] = Path(),
) -> None:
    """Write a Python file with a pipeline that runs without any change.

    Examples:

    $ tidelog pipeline new sales
    """
    from tidelog.cli.pipeline_files import write_skeleton

    path = write_skeleton(name, directory)
    print(f"Wrote {path}. Its first lines say how to try it.")


@app.command("pack")
def pack_command(
    output: Annotated[
        Path, typer.Argument(metavar="FILE.tar.gz", show_default=False, help="The archive to write.", dir_okay=False)
    ],
    without: Annotated[
        list[str],
        typer.Option("--without", metavar="PACKAGE", show_default=False, help="Leave a package out; repeatable."),
    ] = [],  # noqa: B006
) -> None:
    """Pack Tidelog and the packages that it needs on Spark's executors.

    Besides these packages, executors need only PySpark and the driver's
    version of Python. Give the file to `tidelog pipeline run --archive`.

    Examples:

    $ tidelog pipeline pack packages.tar.gz
    $ tidelog pipeline pack packages.tar.gz --without numpy --without pyarrow
    """
    from tidelog.cli.pipeline_files import pack

    began_s = time.monotonic()
    packed = pack(output, without)
    size_mib = output.stat().st_size / (1 << 20)
    seconds = duration_text(round(time.monotonic() - began_s, 1))
    print(f"Packed {', '.join(packed)} into {output} ({size_mib:.0f} MiB) in {seconds}.")
