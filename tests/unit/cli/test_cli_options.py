"""Options that would have no effect are refused, before a broker is asked."""

import pytest

from cli_harness import tidelog

NO_BROKER = ("--bootstrap", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("topic list --names --json", "--names and --json cannot be used together"),
        ("group list --names --json", "--names and --json cannot be used together"),
        ("transaction list --names --json", "--names and --json cannot be used together"),
        ("group lag --interval 5", "--interval says how often --watch refreshes: add --watch"),
        ("consume orders --json --null-marker x", "--json prints null as in JSON: leave out --null-marker"),
        ("bench produce --topic orders --partitions 3", "--partitions cannot be used with --topic"),
        ("bench consume --topic orders --partitions 3", "--partitions cannot be used with --topic"),
        ("bench consume --topic orders --size 10", "--size cannot be used with --topic"),
        ("cluster reassign --cancel --watch", "--watch waits for moves: it cannot be combined with --cancel"),
        ("cluster reassign --clear-throttle --watch", "--watch waits for moves: it cannot be combined with --cancel"),
        ("cluster reassign --clear-throttle --json", "--clear-throttle prints no JSON: leave out --json"),
        ("cluster reassign --undo before.json", "there is no plan: name the brokers with --brokers"),
        ("log dirs --wait", "--wait waits for the end of moves, and there are none: add --move PARTITION=DIR"),
        ("log dirs --move a-0=/disk --json", "--json cannot be used with --move"),
        ("log dirs --move a-0=/disk --partitions", "--partitions cannot be used with --move"),
        ("log dirs --move a-0=/disk --topic a", "--topic cannot be used with --move"),
    ],
)
def test_options_without_effect_are_refused(arguments: str, line: str) -> None:
    assert f"Error: {line}" in tidelog(*arguments.split(), *NO_BROKER, code=2).errors
