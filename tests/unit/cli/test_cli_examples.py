"""The examples in help texts at narrow terminals."""

import itertools
import shlex

import pytest

from tidelog.cli.examples import break_examples, break_line, fit_examples

LINE = '$ tidelog group reset-offsets billing --to-datetime "1 hour ago" --execute | jq .'


@pytest.mark.parametrize("width", [24, 30, 40, 58, 78, 80, 81, 200])
def test_an_example_is_broken_where_a_shell_reads_on(width: int) -> None:
    lines = break_line(LINE, width)
    assert max(map(len, lines)) <= width
    assert all(line.endswith(" \\") for line in lines[:-1])
    # Not one line more than are needed: the first word of each would not have fitted before it.
    for line, following in itertools.pairwise(lines):
        word = shlex.split(following.removesuffix("\\"), posix=False)[0]
        assert len(line) + len(word) + 1 > width
    assert shlex.split(" ".join(line.removesuffix("\\") for line in lines)) == shlex.split(LINE)
    assert (lines == [LINE]) == (len(LINE) <= width)


def test_a_word_is_never_broken() -> None:
    assert break_line("$ a --set k=" + "v" * 30, 20) == ["$ a --set \\", "    k=" + "v" * 30]


def test_only_examples_are_broken() -> None:
    text = "What it does, in more words than fit.\n\nExamples:\n\n  $ tidelog topic list --json\n  $ tidelog topic list"
    broken = break_examples(text, 24)
    assert broken == text.replace("list --json", "list \\\n      --json")
    assert max(len(line) for line in broken.splitlines() if "$" in line) == 24
    assert break_examples(text, 23) == text.replace("topic list --json", "topic \\\n      list --json")


def test_commands_without_a_help_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        help = None

    fit_examples(Bare())
    assert Bare.help is None
