"""The table of commands, and the function that runs a command. The function imports the command's module, and converts
an error of the command into a message on stderr and an exit code.
"""

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.examples import fit_examples
from tidelog.cli.output import drop_output

COMPLETION_VARIABLE = "_TIDELOG_COMPLETE"
"""The environment variable that a shell sets when it requests completions. typer reads the rest of the request from
other variables."""
INTERRUPTED, PIPE_CLOSED = 130, 141
"""Exit codes that a shell reports for a process ended by SIGINT or SIGPIPE: 128 plus the signal's number."""
FILE_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of writes to a stdout that is redirected to a file: disk full, over the quota, file too large."""


class CommandEntry(NamedTuple):
    module: str
    """Module with an `app`, a typer.Typer. If the `app` has one command, the entry is this command; otherwise the
    entry is a group of commands."""
    panel: str
    """Heading under which the command is listed in the help."""
    help: str


COMMANDS = {
    "start": CommandEntry("tidelog.cli.start_help", "Broker", "Run a broker, or several."),
    "broker": CommandEntry("tidelog.cli.broker", "Broker", "Show and change the settings of running brokers."),
    "cluster": CommandEntry(
        "tidelog.cli.cluster_commands", "Broker", "Show brokers and replicas; move replicas; elect leaders."
    ),
    "log": CommandEntry("tidelog.cli.log", "Broker", "Inspect log files and data directories."),
    "topic": CommandEntry(
        "tidelog.cli.topic", "Topics and records", "Create, list, describe, change and delete topics."
    ),
    "produce": CommandEntry("tidelog.cli.produce", "Topics and records", "Write the lines of stdin to a topic."),
    "consume": CommandEntry("tidelog.cli.consume", "Topics and records", "Print the records of a topic."),
    "group": CommandEntry("tidelog.cli.group", "Topics and records", "Show consumer groups and their lag."),
    "transaction": CommandEntry(
        "tidelog.cli.transaction", "Topics and records", "Show and abort transactions; find those that hang."
    ),
    "quota": CommandEntry("tidelog.cli.quota", "Topics and records", "Show and change client quotas."),
    "pipeline": CommandEntry(
        "tidelog.cli.pipeline", "Pipelines", "Run PySpark functions between topics, lakes and databases."
    ),
    "bench": CommandEntry("tidelog.cli.bench", "Measuring", "Measure throughput and latency."),
    "demo": CommandEntry("tidelog.demo.command", "Measuring", "Run a demonstration on real data."),
    "completion": CommandEntry("tidelog.cli.completion", "Shell", "Print a script for tab completion in a shell."),
}


class LazyGroup(TyperGroup):
    """Lists the commands' names and help without importing their modules. When a command runs, only its module is
    imported.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name=name, help=entry.help, rich_help_panel=entry.panel))

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(COMMANDS)

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        name, _, rest = super().resolve_command(ctx, args)
        assert name is not None
        module = importlib.import_module(COMMANDS[name].module)
        command = typer.main.get_command(module.app)
        fit_examples(command)
        return name, command, rest


app = typer.Typer(cls=LazyGroup, add_completion=False, context_settings={"help_option_names": ["--help", "-h"]})


def print_version(wanted: bool) -> None:
    if wanted:
        from tidelog import __version__

        print(f"Tidelog {__version__}")
        raise typer.Exit


@app.callback()
def tidelog(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A message broker that speaks the Kafka protocol.

    Start a broker in one terminal; write and read in another:

    $ tidelog start
    $ echo hello | tidelog produce greetings
    $ tidelog consume greetings --from-beginning

    --bootstrap or TIDELOG_BOOTSTRAP names the cluster. All commands that
    take --bootstrap also work with Apache Kafka.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    The message of a command's error is printed on stderr. Nothing is printed for a closed pipe or Ctrl-C. Any
    other exception is a defect of Tidelog and is raised.
    """
    escape_unencodable_output()
    try:
        code = execute(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()  # the reader closed the pipe
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in FILE_FULL or error.filename is not None:
            raise
        drop_output()
        return fail(f"the output cannot be written: {error.strerror}", 1)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code


def escape_unencodable_output() -> None:
    """Make stdout and stderr write an escape for a character that their encoding (ASCII, Latin-1) lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def execute(arguments: Sequence[str]) -> int:
    """Run one command, print its error if it fails, and return its exit code. Raises OSError if its output cannot be
    written.
    """
    command = typer.main.get_command(app)
    fit_examples(command)
    if COMPLETION_VARIABLE in os.environ:
        from tidelog.cli.completion import run_completion

        return run_completion(command, os.environ[COMPLETION_VARIABLE])
    try:
        check_utf8(arguments)
        with command.make_context("tidelog", list(arguments) or ["--help"]) as context:
            result = command.invoke(context)
    except typer.Exit as exit_request:
        return exit_request.exit_code
    except CommandError as error:
        return fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except Exception as error:
        if exit_code := report_library_error(error):
            return exit_code
        raise
    return result if isinstance(result, int) else 0


def check_utf8(arguments: Sequence[str]) -> None:
    """Raise UsageError for an argument that is not UTF-8, because librdkafka's client crashes on it.

    The commands `log dump`, `log verify`, `group` and `transaction` do not use librdkafka, so their arguments (paths,
    names of groups, transactional ids) may contain any bytes.
    """
    if tuple(arguments[:2]) in (("log", "dump"), ("log", "verify")) or arguments[0:1] in (["group"], ["transaction"]):
        return
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{argument!r} is not UTF-8") from None


def report_library_error(error: Exception) -> int | None:
    """Print typer's usage error or librdkafka's error in one line and return the exit code.

    Return None, without printing, for any other error.
    """
    # Depending on its version, typer raises the errors of click or of its own copy of click. Both kinds of errors have
    # the method `format_message`.
    if format_message := getattr(error, "format_message", None):
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
            # With rich, the help was printed when the error was created, and the message is empty.
            if message := format_message().strip():
                print(message)
            return 2
        path = context.command_path if context is not None else "tidelog"
        return fail(f"{' '.join(format_message().split())} (see {path} --help)", 2)
    kafka = sys.modules.get("confluent_kafka")
    if kafka is not None and isinstance(error, kafka.KafkaException):
        from tidelog.cli.connection import kafka_error

        return fail(str(kafka_error(error)), 1)
    return None


def fail(text: str, code: int) -> int:
    """Print the error on stderr, with control characters escaped, and return `code`."""
    from tidelog.cli.tables import printable

    print("Error: " + "\n".join(map(printable, text.split("\n"))), file=sys.stderr)
    return code
