"""Failures of a command that its user can do something about."""


class CommandError(Exception):
    """One line: what is wrong, and what to do. Ends the command with exit code 1."""


class NoAnswerError(CommandError):
    """No broker can be reached, or none answers in time."""


class UsageError(CommandError):
    """The options do not fit together. Ends the command with exit code 2."""
