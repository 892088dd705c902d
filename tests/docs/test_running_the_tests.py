"""script/test: its help, and what it says in the end."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module script/run_tests.py, which writes its report into another directory."""
    spec = importlib.util.spec_from_file_location("run_tests", ROOT / "script/run_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_tests", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CACHE", tmp_path)
    return module


def test_the_help_runs_no_check() -> None:
    done = subprocess.run(["script/test", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    assert "usage: script/test" in done.stdout
    assert "== ruff" not in done.stdout


def test_the_last_lines_name_the_tests_that_failed(
    run_tests: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_it.py").write_text("def test_right(): pass\ndef test_wrong(): assert False\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    part = run_tests.Part("some", ["-p", "no:randomly", "-c", str(tmp_path / "pytest.ini"), str(tmp_path)])
    outcome = run_tests.run(part, full=False, coverage=False)
    assert (outcome.passed, outcome.counts) == (False, {"failed": 1, "passed": 1})
    assert run_tests.FAILURE.match("FAILED tests/unit/test_it.py::test_wrong[a] - assert False")[1] == (
        "tests/unit/test_it.py::test_wrong[a]"
    )
    capsys.readouterr()
    run_tests.report([outcome._replace(failures=("tests/unit/test_it.py::test_wrong",))], "1 slice")
    assert capsys.readouterr().out.endswith(
        "failed parts: some\nfailed tests; to repeat one: .venv/bin/python -m pytest TEST\n"
        "  tests/unit/test_it.py::test_wrong\n1 passed, 1 failed, 0 skipped\n"
    )
