"""Tidelog gives the recorded answers, field by field, less the named list, of which every entry is needed."""

from . import brokers, report, rules
from .command import CONVERSATIONS, compare
from .conversation import load_all


def test_tidelog_answers_as_recorded() -> None:
    allowed = rules.load()
    with brokers.tidelog() as address:
        result = compare(load_all(CONVERSATIONS), address, allowed)
    print(report.summary_text(result.runs, result.tally, len(result.differences), result.seconds))
    assert report.differences_text(result.differences) == ""
    assert [str(rule) for rule in report.unused(allowed, result.tally)] == []


def test_false_times_in_headers_are_answered_as_recorded_without_full_validation() -> None:
    """By default records are looked at only where a header cannot be taken at its word: these headers cannot."""
    conversations = [c for c in load_all(CONVERSATIONS) if c.file == "times"]
    with brokers.tidelog(brokers.SETTINGS) as address:
        result = compare(conversations, address, rules.load())
    assert result.runs == len(conversations) > 10
    assert report.differences_text(result.differences) == ""
