"""The commands by name, each loaded when it runs, and what becomes of their errors."""

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
"""Set by a shell that asks for completions; the rest of its question is in variables, too."""
INTERRUPTED, PIPE_CLOSED = 130, 141
"""Exit codes, as a shell gives them for SIGINT and SIGPIPE."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""For what is printed to a file."""


class Entry(NamedTuple):
    module: str
    """Has `app`, a typer.Typer: with one command it is that command, with several it is a group."""
    panel: str
    help: str


COMMANDS = {
    "start": Entry("tidelog.cli.start_help", "Broker", "Run a broker."),
    "broker": Entry("tidelog.cli.broker", "Broker", "Show and change the settings of running brokers."),
    "log": Entry("tidelog.cli.log", "Broker", "Log files and data directories."),
    "topic": Entry("tidelog.cli.topic", "Topics and records", "Create, list, describe, change and delete topics."),
    "produce": Entry("tidelog.cli.produce", "Topics and records", "Write the lines of stdin to a topic."),
    "consume": Entry("tidelog.cli.consume", "Topics and records", "Print the records of a topic."),
    "group": Entry("tidelog.cli.group", "Topics and records", "Show consumer groups and their lag."),
    "quota": Entry("tidelog.cli.quota", "Topics and records", "Show and change what clients may use."),
    "bench": Entry("tidelog.cli.bench", "Measuring", "Measure throughput and latency."),
    "demo": Entry("tidelog.demo.command", "Measuring", "See Tidelog at work on real data."),
    "completion": Entry("tidelog.cli.completion", "Shell", "Make a shell complete commands and options."),
}


class LazyGroup(TyperGroup):
    """Knows the commands' names and help without importing them; imports the one that runs."""

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
    """One log that speaks the Kafka protocol.

    Start a broker in one terminal; write and read in another:

    $ tidelog start
    $ echo hello | tidelog produce greetings
    $ tidelog consume greetings --from-beginning

    All commands but start, log dump and log verify work with Apache
    Kafka, too. --bootstrap or TIDELOG_BOOTSTRAP names the cluster.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code. Errors are one line on stderr; a closed pipe and Ctrl-C are quiet."""
    take_every_character()
    try:
        code = execute(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()  # whoever read it has gone
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        drop_output()
        return fail(f"the output cannot be written: {error.strerror}", 1)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code


def take_every_character() -> None:
    """Text for people never fails over a stream's encoding (ASCII, Latin-1): it gets escapes instead."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def execute(arguments: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    fit_examples(command)
    if COMPLETION_VARIABLE in os.environ:
        from tidelog.cli.completion import instructed

        return instructed(command, os.environ[COMPLETION_VARIABLE])
    try:
        check_text(arguments)
        with command.make_context("tidelog", list(arguments) or ["--help"]) as context:
            result = command.invoke(context)
    except typer.Exit as leave:
        return leave.exit_code
    except CommandError as error:
        return fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except Exception as error:
        if told := known_failure(error):
            return told
        raise
    return result if isinstance(result, int) else 0


def check_text(arguments: Sequence[str]) -> None:
    """Raise UsageError for what is not UTF-8, paths of log files and ids of groups aside: librdkafka's client crashes
    over it.
    """
    if tuple(arguments[:2]) in (("log", "dump"), ("log", "verify")) or arguments[:1] == ["group"]:
        return
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{argument!r} is not UTF-8") from None


def known_failure(error: Exception) -> int | None:
    """The exit code for typer's own usage errors and librdkafka's errors, told in one line; None for any other."""
    # typer's errors are click's or of the click inside typer, by version; both have this method.
    if format_message := getattr(error, "format_message", None):
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
            # With rich the help has been printed as the error was made, and is empty here.
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
    from tidelog.cli.tables import printable

    print("Error: " + "\n".join(map(printable, text.split("\n"))), file=sys.stderr)
    return code
