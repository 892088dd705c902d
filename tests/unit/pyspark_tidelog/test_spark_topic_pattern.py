"""Topics chosen by a regular expression, against the recorded answers of Java (tests/golden/spark)."""

import stat
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs tidelog[spark]")

from pyspark_tidelog import topic_pattern
from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.java import NoJava, java_of_spark
from pyspark_tidelog.topic_pattern import TopicPattern, java_regex

GOLDEN = Path(__file__).parents[2] / "golden/spark"
NAMES = (GOLDEN / "topic-names.txt").read_text().splitlines()
RECORDED = [line.split("\t") for line in (GOLDEN / "topic-patterns.tsv").read_text().split("\n") if line]


@pytest.fixture(autouse=True)
def _java() -> None:
    try:
        java_of_spark()
    except NoJava as missing:
        pytest.skip(str(missing))


def test_every_expression_means_what_it_means_in_java() -> None:
    wrong = []
    with java_regex() as java:
        for text, kind, answer in RECORDED:
            try:
                found = java.matching_names(text, NAMES)
            except OptionError as error:
                position = (
                    int(answer.split()[0]) if kind == "refused" else -1
                )  # the words differ between releases of Java
                where = f" near position {position}, after {text[:position]!r}" if position >= 0 else ""
                named = f"option subscribePattern {text!r} is not a regular expression of Java: "
                if kind != "refused" or not str(error).startswith(named) or not str(error).endswith(where):
                    wrong.append(f"{text}: {error}, where Java says {kind} {answer}")
            else:
                if kind != "found" or found != set(answer.split()):
                    wrong.append(f"{text}: found in {sorted(found)}, where Java says {kind} {answer}")
    assert len(RECORDED) > 250
    assert not wrong, "\n".join(wrong)


def test_java_is_started_for_new_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = TopicPattern("sp-[a-z&&[^b]]")
    assert pattern.topics_among(["sp-a", "raw-sp-a", "sp-b"]) == {"sp-a", "raw-sp-a"}
    monkeypatch.setattr(topic_pattern, "java_regex", lambda: pytest.fail("Java was started again"))
    assert pattern.topics_among(["sp-b", "raw-sp-a"]) == {"raw-sp-a"}
    assert pattern.topics_among([]) == set()
    monkeypatch.undo()
    assert pattern.topics_among(["sp-b", "sp-c"]) == {"sp-c"}


def test_an_expression_is_compiled_even_where_there_is_no_topic() -> None:
    with pytest.raises(
        OptionError, match=r"option subscribePattern 'a\(' is not a regular expression .* position 2, after"
    ):
        TopicPattern("a(").topics_among([])


def test_positions_count_characters_as_python_does() -> None:
    with pytest.raises(OptionError, match="near position 2, after '😀😀'"):
        TopicPattern("😀😀[").topics_among(["a"])


def test_an_expression_too_deep_for_java_is_refused() -> None:
    with pytest.raises(OptionError, match=r"Java cannot match option subscribePattern .*StackOverflowError"):
        TopicPattern("(a|b)*").topics_among(["ab" * 100_000])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "needs Java, and .*/bin/java does not start: No such file"),
        ("#!/bin/sh\necho 'Error: no such option' >&2\nexit 1\n", "does not start: Error: no such option"),
    ],
)
def test_a_java_that_does_not_start_is_named(
    script: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if script:
        binary = tmp_path / "bin" / "java"
        binary.parent.mkdir()
        binary.write_text(script)
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(OptionError, match=message):
        TopicPattern("a").topics_among(["a"])


def test_no_java_and_no_jar_of_py4j(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise NoJava("set JAVA_HOME")

    monkeypatch.setattr(topic_pattern, "java_of_spark", missing)
    with pytest.raises(OptionError, match=r"regular expression of Java, but Java cannot run: set JAVA_HOME"):
        TopicPattern("a").topics_among(["a"])
    monkeypatch.undo()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr("pyspark.__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(OptionError, match=r"there is no jars/py4j-\*\.jar"):
        TopicPattern("a").topics_among(["a"])
