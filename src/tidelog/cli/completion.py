"""`tidelog completion` prints a script with which a shell completes commands and options. This module also answers
the shell's requests for completions.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.completion import get_completion_inspect_parameters, shell_complete

from tidelog.cli.app import COMPLETION_VARIABLE
from tidelog.cli.app import app as tidelog_app

if TYPE_CHECKING:
    from collections.abc import MutableMapping

app = typer.Typer(add_completion=False)


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", show_default=False, help="The shell.")],
) -> None:
    """Print a script with which a shell completes commands and options.

    For completion in every new shell, add the example for your shell to its
    start-up file: ~/.bashrc, ~/.zshrc (after the line with compinit), or
    ~/.config/fish/config.fish.

    Examples:

    $ eval "$(tidelog completion bash)"
    $ eval "$(tidelog completion zsh)"
    $ tidelog completion fish | source
    """
    raise typer.Exit(run_completion(typer.main.get_command(tidelog_app), f"source_{shell.value}"))


def run_completion(command: Any, instruction: str) -> int:
    """If `instruction` is `source_SHELL`, print the script. If it is `complete_SHELL`, print the completions of the
    command line that the shell has put into environment variables.

    Return the exit code.
    """
    get_completion_inspect_parameters()  # registers the shells that typer supports
    arguments: MutableMapping[str, Any] = {}
    return shell_complete(command, arguments, "tidelog", COMPLETION_VARIABLE, instruction)
