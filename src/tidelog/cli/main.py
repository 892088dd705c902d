"""The entry point `tidelog`: hands `start` over before anything slow is imported, everything else to the typer app."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    if arguments is None:
        arguments = sys.argv[1:]
    # A broker must be ready in a blink and stay small, so it never sees typer, rich or librdkafka.
    if arguments[:1] == ["start"] and not {"--help", "-h"} & set(arguments):
        from tidelog.cli.start import main as start

        return start(arguments[1:])
    from tidelog.cli.app import run

    return run(arguments)
