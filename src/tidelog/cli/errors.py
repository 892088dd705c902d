"""Failures of a command that its user can do something about."""

from collections.abc import Iterable


class CommandError(Exception):
    """One line: what is wrong, and what to do. Ends the command with exit code 1."""


class NoAnswerError(CommandError):
    """No broker can be reached, or none answers in time."""


class UsageError(CommandError):
    """The options do not fit together. Ends the command with exit code 2."""


def raise_together(failures: Iterable[CommandError]) -> None:
    """Raise what failed of what was asked for by name, after everything else has been shown."""
    found = list(failures)
    if len(found) == 1:
        raise found[0]
    if found:
        raise CommandError("; ".join(map(str, found)))
