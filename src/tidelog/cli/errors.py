"""Errors of a command that are shown to its user as one line."""

from collections.abc import Iterable


class CommandError(Exception):
    """A message of one line: what is wrong, and what to do. Ends the command with exit code 1."""


class NoAnswerError(CommandError):
    """No broker can be reached, or no broker answers in time."""


class UsageError(CommandError):
    """An option or argument is malformed, or options contradict each other. Ends the command with exit code 2."""


def refuse_names_with_json(names: bool, json: bool) -> None:
    """Raise UsageError if --names and --json are both set: a command prints either only names or JSON."""
    if names and json:
        raise UsageError("--names and --json cannot be used together")


def raise_together(failures: Iterable[CommandError]) -> None:
    """Raise the failures as one CommandError; do nothing if there are no failures.

    Commands call this function at their end, after they have printed all successful results.
    """
    errors = list(failures)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise CommandError("; ".join(map(str, errors)))
