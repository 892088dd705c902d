"""Wrap the example command lines in a command's help, so that they can be copied at any width of the terminal."""

import os
import re
import shutil
from typing import Any

INDENT = "    "
MARGIN = 2
"""Number of blank columns beside a help text, on the left and on the right together."""
PROMPT = re.compile(r"^( *)(\$ (?:.*\\\n)*.*)$", re.MULTILINE)
"""A command line with its continuation lines."""
BREAK = re.compile(r" *\\\n *")
WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""")
"""One word of a shell's command line. A word may contain quoted blanks."""


def fit_examples(command: Any) -> None:
    """Wrap the examples in the help of this command and its subcommands to the width of the current terminal."""
    # typer determines the width in the same way.
    width = int(os.environ.get("TERMINAL_WIDTH") or shutil.get_terminal_size().columns) - MARGIN
    if command.help:
        command.help = break_examples(command.help, width)
    for subcommand in (getattr(command, "commands", None) or {}).values():
        fit_examples(subcommand)


def break_examples(text: str, width: int) -> str:
    """Wrap each example to `width` characters, including its indentation. An example is a line that begins with `$`,
    with its continuation lines. All other lines are not changed.
    """

    def broken(line: re.Match[str]) -> str:
        indent = line[1]
        return indent + f"\n{indent}".join(break_line(BREAK.sub(" ", line[2]), width - len(indent)))

    return PROMPT.sub(broken, text)


def break_line(line: str, width: int) -> list[str]:
    """Wrap a command line between words, with a backslash at the end of each line except the last.

    A line is longer than `width` characters only if a single word does not fit into it.
    """
    words = WORD.findall(line)
    lines: list[str] = []
    current = words[0]
    for number, word in enumerate(words[1:], start=2):
        line_width = width if number == len(words) else width - len(" \\")
        if len(current) + 1 + len(word) <= line_width:
            current += f" {word}"
        else:
            lines.append(f"{current} \\")
            current = INDENT + word
    return [*lines, current]
