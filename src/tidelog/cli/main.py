"""The entry point `tidelog`: runs `start` without slow imports, and every other command through the typer app."""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code: 0 done, 1 failed, 2 wrong usage, 3 `cluster status` found
    a problem, 130 interrupted, 141 the reader of stdout closed the pipe. For `start`, see `cli/start.py`.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    open_standard_streams()
    # A broker must start fast and use little memory, so `start` imports neither typer, rich nor librdkafka.
    if arguments[:1] == ["start"] and not {"--help", "-h"} & set(arguments):
        from tidelog.cli.start import main as start

        return start(arguments[1:])
    from tidelog.cli.app import run

    return run(arguments)


def open_standard_streams() -> None:
    """Open the null device for each standard stream that was closed when the process started (`>&-`).

    Otherwise a file of a partition's log could get the stream's descriptor number, and messages for the user would be
    written into that file.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 - open until the process ends
