"""The command line as a whole: finding commands, their help, how errors end."""

import importlib
import itertools
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tidelog.cli import app
from tidelog.cli.errors import CommandError, UsageError
from tidelog.cli.main import main
from tidelog.cli.start import parse


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its name as it is typed: `topic create`."""
    for name, entry in app.COMMANDS.items():
        yield from below(name, typer.main.get_command(importlib.import_module(entry.module).app))


def below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for sub_name, sub_command in (getattr(command, "commands", None) or {}).items():
        yield from below(f"{name} {sub_name}", sub_command)


EVERY = list(commands())


@pytest.fixture(autouse=True)
def at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    monkeypatch.delenv("TIDELOG_BOOTSTRAP", raising=False)


def test_the_commands_are_those_of_the_modules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, entry in app.COMMANDS.items():
        assert re.search(rf"^│ {name} +{re.escape(entry.help)}", shown, re.MULTILINE), name


def test_help_without_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    without = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == without


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "Tidelog 0.1.0\n"


@pytest.mark.parametrize("name", [name for name, _ in EVERY])
def test_every_help_teaches_by_examples_and_fits_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: tidelog {name} " in shown
    assert re.search(rf"^ *\$ .*tidelog {name}", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown, "an option is cut, so that nobody can type it"


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("name", [name for name, _ in EVERY])
def test_every_help_has_its_examples_whole(
    name: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.delenv("TERMINAL_WIDTH", raising=False)
    assert main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    command = dict(EVERY)[name]
    examples = re.findall(r"^ *(\$ .*)$", re.sub(r" *\\\n *", " ", command.help or ""), re.MULTILINE)
    assert examples
    # As a shell reads it: a backslash at the end of a line goes on with the next one.
    whole = re.sub(r" \\ *\n +", " ", shown)
    for example in examples:
        if max(map(len, example.split())) <= width - 8:
            assert re.search(rf"^ {re.escape(example)} *$", whole, re.MULTILINE), shown


def examples() -> Iterator[list[str]]:
    """The command lines after `$` in every help, without the shell around them."""
    for _, command in EVERY:
        text = (command.help or "").replace("\\\n", " ")
        for line in re.findall(r"^\s*\$ (.*)$", text, re.MULTILINE):
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|<")
            lexer.whitespace_split = True
            for piped, words in itertools.groupby(lexer, lambda word: word == "|"):
                if not piped and (command_line := list(words))[0] == "tidelog":
                    yield list(itertools.takewhile(lambda word: word != "<", command_line[1:]))


@pytest.mark.parametrize("words", list(examples()), ids=" ".join)
def test_examples_are_command_lines_that_are_understood(words: list[str]) -> None:
    if words[0] == "start":
        assert parse(words[1:])
        return
    by_name = dict(EVERY)
    name = max((each for each in by_name if words[: len(each.split())] == each.split()), key=len)
    # Only read: a context that is made has parsed its arguments, and nothing has run.
    with by_name[name].make_context(name, words[len(name.split()) :]) as context:
        assert context.params


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["strat"], "No such command 'strat'"),
        (["topic", "creat"], "No such command 'creat'"),
        (["topic", "create"], "Missing argument 'TOPIC'. (see tidelog topic create --help)"),
        (["topic", "create", "x", "--partitions", "0"], "Invalid value for '--partitions' / '-p'"),
        (["topic", "create", "x", "--nope"], "No such option: --nope"),
        (["topic", "create", "x", "--set", "k=1", "--set", "k=2"], "k is set twice"),
        (["topic", "list", "-X", "k=1", "-X", "k=1"], "k is set twice"),
        (["topic", "create", "x", "-p", "100001"], "Invalid value for '--partitions' / '-p'"),
        (["topic", "create", "x", "-r", "99999"], "Invalid value for '--replicas' / '-r'"),
        (["topic", "add-partitions", "x", "100001"], "Invalid value for 'TOTAL'"),
        (["topic", "describe", "x\udcff"], "'x\\udcff' is not UTF-8"),
        (["bench", "produce", "-p", "100001"], "Invalid value for '--partitions' / '-p'"),
        (["bench", "produce", "--size", "1000000001"], "Invalid value for '--size'"),
        (["bench", "latency", "--rate", "nan"], "--rate and --seconds take finite numbers"),
        (["bench", "latency", "--seconds", "1e400"], "--rate and --seconds take finite numbers"),
        (["produce", "x", "-p", "9999999999"], "Invalid value for '--partition' / '-p'"),
        (["produce", "x", "--acks", "2"], "--acks must be one of all, 1, 0, not '2'"),
        (["produce", "x", "-z", "zip"], "--compression must be one of none, gzip, snappy, lz4, zstd, not 'zip'"),
        (["produce", "x", "-k", "a", "-K", ":"], "--key and --key-separator cannot be used together"),
        (["produce", "x", "-H", "a"], "--header takes KEY=VALUE, for example --header source=import, not 'a'"),
        (["produce", "x", "--json", "-K", ":"], "--json lines have their own keys and nulls"),
        (["produce", "x", "--keep-partitions"], "--keep-partitions uses the partitions in --json lines"),
        (["produce", "x", "--json", "--keep-partitions", "-p", "0"], "--keep-partitions uses the partitions"),
        (["consume", "x", "-B", "--since", "1h"], "only one of --from-beginning, --offset and --since"),
        (["consume", "x", "-B", "-o", "latest"], "only one of --from-beginning, --offset and --since"),
        (["consume", "x", "-o", "first"], "--offset takes a number, beginning or end, not 'first'"),
        (["consume", "x", "-o", "1.5"], "--offset takes a number, beginning or end, not '1.5'"),
        (["consume", "x", "-g", ""], "--group takes the name of a group"),
        (["consume", "x", "-g", "a", "-o", "end"], "--group continues from the group's commits"),
        (["consume", "x", "--since", "soon"], "--since: 'soon' is not a time"),
        (["consume", "x", "-g", "a", "-o", "1"], "--group continues from the group's commits"),
        (["consume", "x", "-f", "{valeu}"], "--format: '{valeu}' is not a field"),
        (["consume", "x", "--json", "-f", "{key}"], "--json and --format cannot be used together"),
        (["topic", "list", "-b", "host:port"], "--bootstrap takes HOST:PORT, for example localhost:9092"),
        (["topic", "list", "-b", "http://h:1"], "--bootstrap takes HOST:PORT without http://, that is h:1, not 'http:"),
        (["log", "dirs", "-b", "tcp://h:1"], "--bootstrap takes HOST:PORT without tcp://, that is h:1, not 'tcp:"),
        (["topic", "list", "-b", " , "], "--bootstrap takes HOST:PORT, for example localhost:9092, not ' , '"),
        (["topic", "list", "-X", "security.protocol"], "-X takes KEY=VALUE"),
        (
            ["quota", "set", "x", "--client-id", "a"],
            "expected QUOTA=VALUE, for example producer_byte_rate=1MiB, not",
        ),
        (["quota", "list", "--user", "a", "--default-user"], "--user and --default-user cannot be used together"),
        (["quota", "set", "request_percentage=1"], "no user, client id or address: add --client-id"),
        (["bench", "produce", "--acks", "x"], "--acks must be one of all, 1, 0, not 'x'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"Error: {line}")
    assert printed.err.count("\n") == 1


def test_a_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic"]) in (0, 2)
    assert capsys.readouterr().out.count("Usage: tidelog topic ") == 1


@pytest.fixture
def unused_address() -> str:
    """Where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "arguments",
    [["topic", "list"], ["produce", "x"], ["consume", "x"], ["group", "lag"], ["bench", "latency"]],
    ids=" ".join,
)
def test_no_broker_is_one_line_that_says_how_to_start_one(
    arguments: list[str], unused_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--bootstrap", unused_address]) == 1
    assert capsys.readouterr().err == (
        f"Error: nothing listens on {unused_address}: is a broker running? Start one with: tidelog start"
        " (or name another broker with --bootstrap)\n"
    )


def test_a_host_that_nobody_can_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "list", "-b", "a" * 64]) == 1
    assert capsys.readouterr().err.startswith(f"Error: host {'a' * 64} cannot be found: is a broker running?")


def test_the_bootstrap_of_the_environment(
    unused_address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", unused_address)
    assert main(["topic", "list"]) == 1
    assert unused_address in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (CommandError("a reason"), 1, "Error: a reason\n"),
        (UsageError("a reason"), 2, "Error: a reason\n"),
        (KeyboardInterrupt(), 130, ""),
        (typer.Exit(7), 7, ""),
    ],
)
def test_how_a_command_may_end(
    raised: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**options: object) -> None:
        raise raised

    topic = importlib.import_module("tidelog.cli.topic")
    monkeypatch.setattr(topic, "connect", lambda *arguments: fail())
    assert main(["topic", "list"]) == code
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tidelog to", {"topic"}),
        ("tidelog topic de", {"describe", "delete"}),
        ("tidelog consume --from", {"--from-beginning"}),
        ("tidelog start --da", {"--data"}),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_a_line_may_go_on(typed: str, offered: set[str], shell: str) -> None:
    question = {"_TIDELOG_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        question |= {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    else:
        question |= {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    ran = subprocess.run(
        [sys.executable, "-m", "tidelog"], env=os.environ | question, capture_output=True, text=True, check=True
    )
    assert ran.stderr == ""
    options = set(re.findall(r"-{0,2}[a-z][a-z-]+", ran.stdout)) if shell == "zsh" else set(ran.stdout.split())
    assert offered <= options


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_with_the_script() -> None:
    script = (
        'eval "$(tidelog completion bash)"; COMP_WORDS=(tidelog topic des); COMP_CWORD=2\n'
        '_tidelog_completion tidelog; echo "${COMPREPLY[@]}"; complete -p tidelog'
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ran = subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["describe", "complete -o default -F _tidelog_completion tidelog"]


TRANSACTIONS = str(Path(__file__).parents[2] / "golden/segments/kafka-4.3.1/transactions-0")


@pytest.mark.parametrize("arguments", [["--version"], ["log", "verify", TRANSACTIONS]], ids=["version", "verify"])
def test_a_stdout_that_was_never_open(arguments: list[str]) -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "tidelog", *arguments]
    ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_closed_pipe_is_quiet() -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "tidelog", "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    command.stdout.close()
    assert command.stderr is not None
    with command:
        assert command.stderr.read() == b""
    assert command.returncode == 141


FULL = "Error: the output cannot be written: No space left on device\n"


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["log", "verify", TRANSACTIONS], ["log", "dump", *[TRANSACTIONS] * 9]],
    ids=["help", "verify", "dump"],
)
def test_a_full_disk_under_the_output_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "tidelog", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ran.returncode, ran.stderr) == (1, FULL)
