"""An interrupted or failed demonstration: the files that it leaves, and its messages."""

import builtins
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tidelog.cli.errors import CommandError
from tidelog.demo import stage
from tidelog.demo.command import flash_sale


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Ctrl-C comes when the first files are there. Temporary directories are made in the path returned."""

    def run(plan: stage.Plan, display: stage.Display) -> stage.Result:
        plan.directory.mkdir(parents=True, exist_ok=True)
        (plan.directory / "ledger.sqlite").write_text("")
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, "run", run)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_ctrl_c_removes_a_directory_that_nobody_has_chosen(interrupted: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        flash_sale(spark=False)
    assert list(interrupted.iterdir()) == []


def test_ctrl_c_names_a_directory_that_was_given(interrupted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = interrupted / "sale"
    with pytest.raises(KeyboardInterrupt):
        flash_sale(given, spark=False)
    assert (given / "ledger.sqlite").exists()
    assert capsys.readouterr().err == f"stopped; files: {given}\n"


def test_without_spark_it_says_what_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_spark(name: str, *rest: Any) -> Any:
        if name == "pyarrow":
            raise ImportError(name=name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_spark)
    with pytest.raises(CommandError, match=r"needs pyarrow: pip install '\.\[spark\]' in a clone of Tidelog"):
        flash_sale()


def test_no_client_writes_into_the_display(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """librdkafka's own lines go to the stderr of the process."""
    made: list[dict[str, Any]] = []

    class Noted:
        def __init__(self, configuration: dict[str, Any]) -> None:
            made.append(configuration)

        def create_topics(self, topics: list[Any]) -> dict[str, Any]:
            return {}

    monkeypatch.setattr(stage, "Consumer", Noted)
    monkeypatch.setattr(stage, "AdminClient", Noted)
    stage.make_topics("127.0.0.1:1")
    stage.Ledger.create(tmp_path / "ledger.sqlite", {}).close()
    stage.Observer("127.0.0.1:1", tmp_path)._ledger.close()
    assert [configuration["log_level"] for configuration in made] == [0, 0]
