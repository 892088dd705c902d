"""The modules, files and tests that the documents about the code name are there."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABOUT_THE_CODE = ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/development.md", "docs/invariants.md"]
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)(?:::(\w+))?`")
"""A path with at least one slash: a file, a directory, or a test in a file."""
NAME = re.compile(r"`(?:[A-Za-z]\w*\.)?(_?[A-Za-z]\w*(?:_\w+|[A-Z]\w*))`")
"""A name with an underscore or an inner capital, perhaps behind the name of its class or module."""
PLACES = (ROOT, ROOT / "src/tidelog", ROOT / "src")
"""A path is named from the root or from the product's package."""


def missing(text: str) -> list[str]:
    found = []
    for path, name in FILE.findall(text):
        file = next((place / path for place in PLACES if (place / path).exists()), None)
        if file is None or (name and not re.search(rf"(?:def {name}\b|^{name} = )", file.read_text(), re.MULTILINE)):
            found.append(f"{path}::{name}" if name else path)
    return found


@pytest.mark.parametrize("name", [*ABOUT_THE_CODE, "docs/conformance.md"])
def test_what_a_document_names_is_there(name: str) -> None:
    assert missing((ROOT / name).read_text()) == []


@pytest.mark.parametrize("name", ABOUT_THE_CODE)
def test_names_of_the_code_are_in_the_code(name: str) -> None:
    """Classes, functions and constants that a document names: a rename has to reach the document, too."""
    assert sorted(set(NAME.findall((ROOT / name).read_text())) - words_of_the_code()) == []


@cache
def words_of_the_code() -> set[str]:
    return {
        word
        for directory in ("src", "tests", "script")
        for path in (ROOT / directory).rglob("*")
        if path.suffix in {".py", ""} and path.is_file()
        for word in re.findall(r"\w+", path.read_text(errors="replace"))
    }


def test_each_invariant_names_a_module_and_a_test() -> None:
    text = (ROOT / "docs/invariants.md").read_text().partition("## Not built")[0]
    invariants = re.split(r"\n\n(?=\*\*)", text)[1:]
    assert len(invariants) > 20
    assert [entry for entry in invariants if "- kept by: " not in entry or "::" not in entry] == []


def test_each_scenario_of_the_cluster_is_named_with_its_rule() -> None:
    text = (ROOT / "docs/invariants.md").read_text()
    directories = ("replication", "controller", "cluster")
    scenarios = [path for name in directories for path in (ROOT / "tests/scenarios" / name).glob("*.txt")]
    assert len(scenarios) > 30
    assert [path.name for path in scenarios if f"`{path.relative_to(ROOT)}`" not in text] == []


def test_what_is_not_there_is_found() -> None:
    text = "`log/no_such.py` and `tests/docs/test_named_places.py::test_no_such`, not `log/segment.py`"
    assert missing(text) == ["log/no_such.py", "tests/docs/test_named_places.py::test_no_such"]
