"""`tidelog pipeline`, as far as it does not start Spark."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tidelog.cli import pipeline_run
from tidelog.cli.app import run
from tidelog.cli.pipeline_files import add_files
from tidelog.pipelines import file, pipeline
from tidelog.pipelines.loading import declared_pipeline, load
from tidelog.pipelines.running import Run
from tidelog.pipelines.state import PipelineState


def test_a_new_pipeline_can_be_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "new", "web-sales", "--directory", str(tmp_path)]) == 0
    assert [each.name for each in load(str(tmp_path / "web-sales.py"))] == ["web_sales"]
    capsys.readouterr()
    assert run(["pipeline", "list", str(tmp_path / "web-sales.py"), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["sources"] == {"sales": "topic web-sales"}
    assert document["dead_letters"] == "web-sales-dead"
    assert run(["pipeline", "new", "web-sales", "--directory", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"Error: {tmp_path}/web-sales.py exists already: choose another name\n"
    assert run(["pipeline", "new", "../x"]) == 2


def test_a_list_shows_no_secret_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text(
        """
from tidelog.pipelines import pipeline, topic
SETTINGS = {
    "spark.hadoop.fs.s3a.access.key": "hunter2-id",
    "spark.hadoop.fs.s3a.secret.key": "hunter2-key",
    "spark.hadoop.fs.azure.account.key.store": "hunter2-azure",
    "spark.hadoop.proxy": "http://me:hunter2@proxy:1/",
    "spark.hadoop.other": "contains hunter2-key",
    "spark.sql.shuffle.partitions": "8",
}
@pipeline(source=topic("a"), sink=topic("b"), settings=SETTINGS)
def copy(records):
    return records
"""
    )
    assert run(["pipeline", "list", str(tmp_path / "a.py"), "--json"]) == 0
    shown = capsys.readouterr().out
    assert "hunter2" not in shown
    (document,) = json.loads(shown)
    assert document["settings"] == {
        "spark.hadoop.fs.s3a.access.key": "***",
        "spark.hadoop.fs.s3a.secret.key": "***",
        "spark.hadoop.fs.azure.account.key.store": "***",
        "spark.hadoop.proxy": "http://***@proxy:1/",
        "spark.hadoop.other": "contains ***",
        "spark.sql.shuffle.partitions": "8",
    }


def test_help_and_list_do_not_import_pyspark(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from tidelog.pipelines import pipeline, topic\n@pipeline(source=topic('a'),\n")
    with open(tmp_path / "a.py", "a") as file:
        file.write("    sink=topic('b'))\ndef copy(records):\n    return records\n")
    program = (
        "import sys; from tidelog.cli.app import run;"
        f"assert run(['pipeline', '--help']) == 0; assert run(['pipeline', 'list', {str(tmp_path / 'a.py')!r}]) == 0;"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('pyspark', 'pyarrow', 'numpy')]"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "copy" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["reset", "sales"], 1, "pipeline sales has no state in .* choose another directory with --state"),
        (["replay", "sales", "--from", "sometime"], 2, "--from: 'sometime' is not a time.*earliest, latest"),
        (["run", "missing.py"], 1, "there is no file missing.py"),
        (["pack", "x.zip"], 2, "the name of the archive must end with .tar.gz"),
        (["pack", "x.tar.gz", "--without", "flask"], 2, r"--without takes packages of the archive \(tidelog"),
    ],
)
def test_errors_name_the_remedy(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["pipeline", *arguments]) == code
    assert __import__("re").search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("declaration", "needs_a_broker"),
    [
        ("pipeline(source=file('in'), sink=file('out'))", False),
        ("pipeline(source=topic('a', bootstrap='other:9092'), sink=file('out'))", False),
        ("pipeline(source=topic('a'), sink=file('out'))", True),
        ("pipeline(source=file('in'), sink=topic('b'))", True),
        ("pipeline(source=file('in'), sink=file('out'), dead_letters='dead')", True),
        ("(lambda _: mirror('copy', source='old:9092', topics='.*'))", True),
        ("(lambda _: mirror('copy', source='old:9092', topics='.*', target='new:9092'))", False),
    ],
)
def test_a_broker_must_run_only_for_pipelines_that_use_it(
    declaration: str,
    needs_a_broker: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = (
        f"from tidelog.pipelines import file, mirror, pipeline, topic\n@{declaration}\ndef copy(rows): return rows\n"
    )
    (tmp_path / "a.py").write_text(program)
    monkeypatch.setattr(pipeline_run, "run_pipelines", lambda plan: [])
    arguments = ["pipeline", "run", str(tmp_path / "a.py"), "--state", str(tmp_path), "--bootstrap", "127.0.0.1:1"]
    assert (run(arguments) != 0) == needs_a_broker
    assert ("is a broker running?" in capsys.readouterr().err) == needs_a_broker


def test_the_settings_of_a_dry_run_override_those_of_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="needs tidelog[spark]")
    from tidelog.pipelines import dry_runs, session

    overrides: list[dict[str, str]] = []
    monkeypatch.setattr(session, "start_session", lambda *_, **__: MagicMock())
    monkeypatch.setattr(session, "pipeline_session", lambda spark, pipeline, settings: overrides.append({**settings}))
    monkeypatch.setattr(dry_runs, "sample", lambda *_: dry_runs.Sample([], {}))
    program = "from tidelog.pipelines import file, pipeline\n@pipeline(source=file('in'), sink=file('out'))\n"
    (tmp_path / "a.py").write_text(program + "def copy(rows): return rows\n")
    assert run(["pipeline", "dry-run", str(tmp_path / "a.py"), "--set", "spark.sql.session.timeZone=CET"]) == 0
    assert overrides == [{"spark.sql.session.timeZone": "CET"}]


def test_replay_and_reset_need_a_confirmation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = PipelineState(tmp_path, "sales")
    first = state.create_identity(None)
    assert run(["pipeline", "reset", "sales", "--state", str(tmp_path)]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert run(["pipeline", "replay", "sales", "--from", "latest", "--state", str(tmp_path), "--yes"]) == 0
    second = state.identity()
    assert second is not None
    assert (second.id != first.id, second.begin) == (True, "latest")
    state.lock()
    assert run(["pipeline", "reset", "sales", "--state", str(tmp_path), "--yes"]) == 1
    assert "pipeline sales is running already" in capsys.readouterr().err
    state.unlock()
    assert run(["pipeline", "reset", "sales", "--state", str(tmp_path), "--yes"]) == 0
    assert state.identity() is None


def test_a_replay_that_a_source_would_refuse_removes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = PipelineState(tmp_path, "sales")

    @pipeline(source=file("/in"), sink=file("/out"), name="sales")
    def copy(rows: object) -> object:
        return rows

    with Run([declared_pipeline(copy)], MagicMock(), bootstrap="127.0.0.1:1", state=tmp_path):
        first = state.identity()
        assert first is not None
    checkpoint = state.checkpoint(first, "sales")
    checkpoint.mkdir(parents=True)

    def replay(begin: str) -> int:
        return run(["pipeline", "replay", "sales", "--from", begin, "--state", str(tmp_path), "--yes"])

    for begin, name in (("latest", "latest"), ("2 hours ago", "a time")):
        assert replay(begin) == 1
        text = f"source rows (file /in) can begin at earliest, but not at {name}, so nothing was removed: choose"
        assert text in capsys.readouterr().err
        assert (state.identity(), checkpoint.exists()) == (first, True)
    assert replay("earliest") == 0
    assert (state.identity() != first, checkpoint.exists()) == (True, False)
    (state.directory / "begins.json").unlink()  # as an early version of Tidelog
    assert replay("latest") == 0


def test_a_checkpoint_that_only_spark_can_remove_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PipelineState(tmp_path, "sales").create_identity(None, "s3a://bucket/checkpoints")
    assert run(["pipeline", "replay", "sales", "--from", "latest", "--state", str(tmp_path), "--yes"]) == 0
    note = "the old checkpoint in s3a://bucket/checkpoints is removed by the next run of sales"
    assert note in capsys.readouterr().err


def test_status_of_a_process_that_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = PipelineState(tmp_path, "sales")
    state.create_identity(None)
    state.write_status({"pipeline": "sales", "state": "running", "queries": [{"sink": "sales", "rows": 7}]})
    assert run(["pipeline", "status", "--state", str(tmp_path), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert (document["state"], document["process"], document["queries"][0]["rows"]) == ("ended", False, 7)
    state.lock()
    assert run(["pipeline", "status", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["sales", "running"]
    state.unlock()


def test_status_beside_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PipelineState(tmp_path, "sound").write_status({"pipeline": "sound", "state": "done"})
    PipelineState(tmp_path, "odd").write_status({"pipeline": "odd", "state": "running", "queries": [{"rows": 7}]})
    assert run(["pipeline", "status", "--state", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [["odd", "unknown"], ["sound", "done"]]
    assert shown.err == "Note: the figures of pipeline odd cannot be shown: sink is missing\n"
    (tmp_path / "odd" / "status.json").write_text("[")
    assert run(["pipeline", "status", "--state", str(tmp_path), "--json"]) == 0
    shown = capsys.readouterr()
    assert [each["state"] for each in json.loads(shown.out)] == ["unknown", "done"]
    assert "odd/status.json cannot be read: Expecting value" in shown.err


def test_a_file_that_cannot_be_loaded_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "new", "sales", "--directory", str(tmp_path)]) == 0
    (tmp_path / "odd.py").write_text("raise ValueError('odd')")
    capsys.readouterr()
    files = [str(tmp_path / name) for name in ("odd.py", "sales.py")]
    assert run(["pipeline", "list", *files, "--json"]) == 1
    shown = capsys.readouterr()
    assert [each["pipeline"] for each in json.loads(shown.out)] == ["sales"]
    assert "odd.py:1: ValueError: odd" in shown.err
    assert run(["pipeline", "run", *files]) == 1, "none is run unless all are loaded"
    assert "odd.py:1: ValueError: odd" in capsys.readouterr().err


def test_a_pack_has_the_packages_and_no_caches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "packages.tar.gz"
    large = ["numpy", "pyarrow", "numba", "llvmlite", "pandas", "python-dateutil", "pytz", "tzdata", "protobuf"]
    options = [option for name in large for option in ("--without", name)]
    assert run(["pipeline", "pack", str(archive), *options]) == 0
    assert capsys.readouterr().out.startswith("Packed tidelog, cramjam, crc32c")
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    assert {"tidelog/__init__.py", "pyspark_tidelog/source.py", "cramjam/__init__.py"} <= {*names}
    assert not [name for name in names if "__pycache__" in name or name.startswith(("/", ".."))]


def test_an_installation_below_a_directory_of_tests_is_packed(tmp_path: Path) -> None:
    root = tmp_path / "tests/site-packages"
    for name in ("six.py", "pkg/__init__.py", "pkg/tests/test_pkg.py", "pkg/__pycache__/x.pyc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    with tarfile.open(tmp_path / "packed.tar", "w") as archive:
        add_files(archive, root, sorted(root.rglob("*")))
        assert archive.getnames() == ["pkg/__init__.py", "six.py"]
