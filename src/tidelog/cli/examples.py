"""The examples in a command's help: command lines that can be copied at any width of the terminal."""

import os
import re
import shutil
from typing import Any

INDENT = "    "
MARGIN = 2
"""Blank columns beside a help text."""
PROMPT = re.compile(r"^( *)(\$ (?:.*\\\n)*.*)$", re.MULTILINE)
"""A command line, with the lines on which it goes on."""
BREAK = re.compile(r" *\\\n *")
WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""")
"""What a shell takes for one."""


def fit_examples(command: Any) -> None:
    """Break the examples of this command and of those below it where a shell reads on, for the terminal of now."""
    # What typer goes by, too.
    width = int(os.environ.get("TERMINAL_WIDTH") or shutil.get_terminal_size().columns) - MARGIN
    if command.help:
        command.help = fitted(command.help, width)
    for below in (getattr(command, "commands", None) or {}).values():
        fit_examples(below)


def fitted(text: str, width: int) -> str:
    """Lines that begin with `$` and are longer are broken between words, with a backslash; others stay."""
    return PROMPT.sub(lambda line: line[1] + f"\n{line[1]}".join(broken(BREAK.sub(" ", line[2]), width)), text)


def broken(line: str, width: int) -> list[str]:
    """At most `width` characters each, but for words that are longer than that themselves."""
    words = WORD.findall(line)
    lines: list[str] = []
    current = words[0]
    for number, word in enumerate(words[1:], start=2):
        room = width if number == len(words) else width - len(" \\")
        if len(current) + 1 + len(word) <= room:
            current += f" {word}"
        else:
            lines.append(f"{current} \\")
            current = INDENT + word
    return [*lines, current]
