"""`tidelog start`: run one broker, or with --brokers a cluster of brokers on this machine, in the foreground.

To start fast, this module does not import typer, rich, argparse or librdkafka. `cli/start_help.py` prints the help of
the command and has the same flags except HIDDEN_FLAGS.
"""

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.cli.logs import LEVELS

FAILED, WRONG_USAGE = 1, 2
"""Exit codes. 1: the broker failed. 2: the command line is malformed. 0: a signal or the end of the parent process
stopped the broker. 128 + N: a second signal, with the number N, ended the broker immediately."""

FLAGS = {
    "--config": "FILE",
    "--data": "DIR",
    "--listen": "HOST:PORT",
    "--set": "KEY=VALUE",
    "--brokers": "N",
    "--log-level": "LEVEL",
    "--json": "",
    "--parent-pipe": "FD",
    "--supervisor-pipe": "FD",
}
"""The name of each flag's value; "" for a flag without a value."""
HIDDEN_FLAGS = ("--parent-pipe", "--supervisor-pipe")
"""Flags that the help does not show. `--parent-pipe` is for programs that start a broker as their child
(`cli/parent.py`), `--supervisor-pipe` for the supervisor of a cluster (`cli/supervisor.py`)."""
BROKERS_MAX = 100
"""Upper bound on the brokers of one supervisor. Each broker is a process of about 30 MB."""

FOREIGN_OPTIONS = {
    **dict.fromkeys(("--address", "--bind", "--bootstrap", "--host", "--port", "-H", "-b", "-p"), "--listen"),
    **dict.fromkeys(("--dir", "--log-dir", "--log-dirs", "-d"), "--data"),
    **dict.fromkeys(("--override", "-X", "-s"), "--set"),
    **dict.fromkeys(("--verbose", "-v"), "--log-level"),
    **dict.fromkeys(("--nodes", "--replicas", "-n"), "--brokers"),
    "-c": "--config",
}
"""Options of other brokers and other commands -> our flag for the same purpose."""


class MisusedError(Exception):
    """The command line is malformed. The text is one line that says what is wrong, or what to type instead."""


class Options(NamedTuple):
    config_file: str | None
    settings: dict[str, str]
    """Kafka's setting name -> value, from `--set`, `--data` and `--listen`."""
    log_level: str
    parent_pipe: int | None
    """The read end of a pipe, from one of HIDDEN_FLAGS. The parent process holds the write end. The broker stops when
    the parent has ended."""
    brokers: int | None = None
    """Number of brokers that a supervisor runs; None means that this process is one broker."""
    json: bool = False
    """Whether the lines on stdout are JSON."""
    is_supervised: bool = False
    """Whether the parent is the supervisor of a cluster. Log lines and errors then name the broker."""


def main(arguments: Sequence[str]) -> int:
    """Run the broker or brokers until a signal, a failure or the end of the parent stops them. Return the exit code.

    Every failure is one line on stderr.
    """
    try:
        options = parse(arguments)
    except MisusedError as error:
        print(f"Error: {error} (see tidelog start --help)", file=sys.stderr)
        return WRONG_USAGE
    if options.brokers is not None:
        from tidelog.cli.supervisor import supervise

        return supervise(options)
    from tidelog.cli.serve import serve

    return serve(options)


def parse(arguments: Sequence[str]) -> Options:
    """Parse `--flag VALUE` and `--flag=VALUE`. If `--set` is repeated for a key, its last value is used.

    Raises MisusedError.
    """
    values: dict[str, str] = {}
    settings: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag not in FLAGS:
            raise MisusedError(unknown_flag_message(flag))
        if not FLAGS[flag]:
            if equals:
                raise MisusedError(f"{flag} takes no value")
        elif not equals:
            if not rest:
                raise MisusedError(f"{flag} needs a value: {flag} {FLAGS[flag]}")
            value = rest.pop(0)
        if flag == "--set":
            key, equals, setting = value.partition("=")
            if not key or not equals:
                raise MisusedError(f"--set takes KEY=VALUE, for example --set num.partitions=3, not {value!r}")
            settings[key.strip()] = setting.strip()
        elif flag in values:
            raise MisusedError(f"{flag} occurs twice")
        else:
            values[flag] = value
    for flag, key, convert in (
        ("--data", "log.dirs", absolute_directories),
        ("--listen", "listeners", listener_setting),
    ):
        if flag in values:
            if key in settings:
                raise MisusedError(f"{flag} and --set {key} cannot be used together, because they are the same setting")
            settings[key] = convert(values[flag])
    pipes = [pipe(values, flag) for flag in HIDDEN_FLAGS]
    return Options(
        values.get("--config"),
        settings,
        log_level(values),
        pipes[0] if pipes[1] is None else pipes[1],
        broker_count(values),
        "--json" in values,
        is_supervised=pipes[1] is not None,
    )


def unknown_flag_message(flag: str) -> str:
    if not flag.startswith("-"):
        return f"unexpected argument {flag!r}" + ("; to use a file, add --config FILE" if "." in flag else "")
    if flag in FOREIGN_OPTIONS:
        return f"no such option: {flag}; use {FOREIGN_OPTIONS[flag]} {FLAGS[FOREIGN_OPTIONS[flag]]}"
    from tidelog.config.keys import BROKER_KEYS

    if (name := flag.lstrip("-")) in BROKER_KEYS:
        return f"no such option: {flag}; use --set {name}=VALUE"
    import difflib

    close_matches = difflib.get_close_matches(flag, [name for name in FLAGS if name not in HIDDEN_FLAGS], n=1)
    return f"no such option: {flag}" + (f"; did you mean {close_matches[0]}?" if close_matches else "")


def absolute_directories(text: str) -> str:
    if not text:
        raise MisusedError("--data needs a directory")
    return ",".join(os.path.abspath(path) for path in text.split(","))  # noqa: PTH100 - pathlib costs start-up time


def listener_setting(text: str) -> str:
    """Return `HOST:PORT` as a value of `listeners`. An IPv6 host must be in brackets. Raises MisusedError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise MisusedError(f"--listen takes HOST:PORT, for example 127.0.0.1:9092, not {text!r}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise MisusedError(f"--listen takes an IPv6 host in brackets, for example [{host}]:{port}")
    return f"PLAINTEXT://{host}:{port}"


def log_level(values: dict[str, str]) -> str:
    level = values.get("--log-level", "info").lower()
    if level not in LEVELS:
        raise MisusedError(f"--log-level must be one of {', '.join(LEVELS)}, not {level!r}")
    return level


def broker_count(values: dict[str, str]) -> int | None:
    text = values.get("--brokers")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= BROKERS_MAX:
        raise MisusedError(f"--brokers takes a number from 1 to {BROKERS_MAX}, for example --brokers 3, not {text!r}")
    return int(text)


def pipe(values: dict[str, str], flag: str) -> int | None:
    text = values.get(flag)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise MisusedError(f"{flag} takes a file descriptor, not {text!r}")
    return int(text)
