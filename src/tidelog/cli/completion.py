"""`tidelog completion`: the script by which a shell completes commands and options, and what it asks for then."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.completion import get_completion_inspect_parameters, shell_complete

from tidelog.cli.app import COMPLETION_VARIABLE
from tidelog.cli.app import app as of_tidelog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

app = typer.Typer(add_completion=False)


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", show_default=False, help="Which shell.")],
) -> None:
    """Print a script that makes a shell complete commands and options.

    In the shell's start-up file it serves every new shell: ~/.bashrc, or
    ~/.zshrc below compinit, or ~/.config/fish/config.fish.

    Examples:

    $ eval "$(tidelog completion bash)"
    $ eval "$(tidelog completion zsh)"
    $ tidelog completion fish | source
    """
    raise typer.Exit(instructed(typer.main.get_command(of_tidelog), f"source_{shell.value}"))


def instructed(command: Any, instruction: str) -> int:
    """Print the script (`source_SHELL`), or the answer to the question in the environment (`complete_SHELL`); returns
    the exit code.
    """
    get_completion_inspect_parameters()  # makes typer know the shells
    arguments: MutableMapping[str, Any] = {}
    return shell_complete(command, arguments, "tidelog", COMPLETION_VARIABLE, instruction)
