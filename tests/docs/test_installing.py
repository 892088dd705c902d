"""The ways to install that the documents name do not get into each other's way."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Clone:
    """A directory with script/setup, what it reads, and an environment whose pip only notes what it is told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for part in ("script/setup", "src/tidelog/__init__.py", "pyproject.toml", "requirements/dev.txt"):
            (directory / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / part, directory / part)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / ".venv"], check=True)
        paths = {"base": str(directory / ".venv"), "platbase": str(directory / ".venv")}
        self.packages = Path(sysconfig.get_path("purelib", "venv", paths))
        self.told = directory / "told"
        for name, text in (
            ("pip/__main__.py", f"import sys\nopen({str(self.told)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')"),
            ("pyspark_tidelog/prepare.py", ""),
        ):
            (self.packages / name).parent.mkdir()
            (self.packages / name).write_text(text)

    def has(self, *, editable: bool) -> None:
        """As an installation leaves it that was either way."""
        link, copy = self.packages / "tidelog.pth", self.packages / "tidelog"
        link.unlink(missing_ok=True)
        shutil.rmtree(copy, ignore_errors=True)
        if editable:
            link.write_text(str(self.directory / "src"))
        else:
            shutil.copytree(self.directory / "src/tidelog", copy)

    def set_up(self) -> list[str]:
        """The calls of pip that script/setup makes."""
        self.told.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = self.directory / "script/setup"
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        return self.told.read_text().splitlines() if self.told.exists() else []


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_script_setup_installs_again_where_a_copy_has_taken_the_place(clone: Clone) -> None:
    assert clone.set_up()[-1].endswith(" -e .")
    clone.has(editable=True)
    assert clone.set_up() == []
    clone.has(editable=False)
    assert clone.set_up()[-1].endswith(" -e .")


def test_a_build_takes_nothing_from_one_before(tmp_path: Path) -> None:
    """Modules that are gone would be installed again from build/lib."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src/tidelog"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, tmp_path / name)
    modules = []
    for content in ("", None):
        module = tmp_path / "src/tidelog/gone_later.py"
        module.unlink() if content is None else module.write_text(content)
        build = "from setuptools.build_meta import build_wheel; print(build_wheel('wheels'))"
        done = subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        names = zipfile.ZipFile(tmp_path / "wheels" / done.stdout.split()[-1]).namelist()
        assert "tidelog/testing/pytest_plugin.py" in names
        modules.append("tidelog/gone_later.py" in names)
    assert modules == [True, False]
    assert not (tmp_path / "build").exists()
