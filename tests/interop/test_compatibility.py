"""docs/compatibility.md agrees with the tests of the suites, and with the installed versions."""

from interop_harness import compatibility


def test_the_table_is_made_from_the_suites() -> None:
    text = compatibility.DOCUMENT.read_text()
    assert text == compatibility.document(text), "script/compatibility makes it anew"


def test_every_row_is_exercised_by_somebody() -> None:
    assert {one.capability for one in compatibility.exercised_capabilities()} == {*compatibility.CAPABILITIES}
    assert {one.client for one in compatibility.exercised_capabilities()} == {*compatibility.CLIENTS}
