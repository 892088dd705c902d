"""The house rules that a linter does not know. Each names the file and line that breaks it."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = sorted((ROOT / "src").rglob("*.py"))
GENERATED = ROOT / "src/tidelog/wire/messages"

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600

OUTSIDE = {
    "concurrent", "ctypes", "fcntl", "mmap", "multiprocessing", "os", "pathlib", "random", "secrets", "select",
    "selectors", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
"""What reaches the world: only through the runtime."""

MAY_REACH_OUTSIDE = (
    "tidelog/runtime/",
    "tidelog/simulation/",
    "tidelog/cli/",
    "tidelog/testing/",
    "tidelog/demo/",
    "tidelog/metadata/sqlite.py",
    "tidelog/client/blocking.py",
    "tidelog/client/link.py",
    "tidelog/__main__.py",
    "pyspark_tidelog/",
)

LOOP_CHOICES = {
    "create_task", "ensure_future", "get_event_loop", "get_running_loop", "new_event_loop", "open_connection", "run",
    "sleep", "start_server", "to_thread",
}  # fmt: skip
"""Of asyncio: what a virtual clock or a simulated network could not replace."""


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT / "src"))


def _pure_product() -> Iterator[tuple[Path, ast.Module]]:
    for path in PRODUCT:
        if not _relative(path).startswith(MAY_REACH_OUTSIDE):
            yield path, ast.parse(path.read_text())


def test_the_world_is_reached_through_the_runtime_only() -> None:
    found = []
    for path, tree in _pure_product():
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                names = ["os.open"]
            for name in names:
                if name.partition(".")[0] in OUTSIDE:
                    found.append(f"{_relative(path)}:{node.lineno}: {name}")  # type: ignore[attr-defined]
    assert not found


def test_the_loop_is_chosen_by_nobody_but_the_command_line() -> None:
    found = []
    for path, tree in _pure_product():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "asyncio":
                if node.attr in LOOP_CHOICES:
                    found.append(f"{_relative(path)}:{node.lineno}: asyncio.{node.attr}")
            elif isinstance(node, ast.ImportFrom) and node.module == "asyncio":
                found += [f"{_relative(path)}:{node.lineno}: {a.name}" for a in node.names if a.name in LOOP_CHOICES]
    assert not found


def test_no_set_is_walked_where_the_order_can_be_seen() -> None:
    found = []
    for path, tree in _pure_product():
        for node in ast.walk(tree):
            if isinstance(node, ast.For | ast.comprehension):
                over = node.iter
                call = (
                    isinstance(over, ast.Call)
                    and isinstance(over.func, ast.Name)
                    and over.func.id in {"set", "frozenset"}
                )
                if call or isinstance(over, ast.Set | ast.SetComp):
                    found.append(f"{_relative(path)}:{over.lineno}")
    assert not found


def test_functions_and_files_stay_short() -> None:
    found = []
    for path in PRODUCT:
        if GENERATED in path.parents:
            continue
        text = path.read_text()
        if text.count("\n") > FILE_LINES_MAX:
            found.append(f"{_relative(path)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    found.append(f"{_relative(path)}:{node.lineno}: {node.name} has {lines} lines")
    assert not found


def test_every_module_says_its_duty() -> None:
    missing = [
        _relative(p) for p in PRODUCT if p.read_text().strip() and not ast.get_docstring(ast.parse(p.read_text()))
    ]
    assert not missing


def test_files_are_named_for_their_duty() -> None:
    empty = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    assert not [_relative(p) for p in PRODUCT if p.name in empty]


def _committed() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


TEXT = {".py", ".md", ".toml", ".txt", ".tsv", ".cfg", ".yml", ".sh", ".c", ".java", ""}


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("a note to self instead of an entry in GAPS.md", r"\b(TODO|FIXME|" + "XX" + r"X|HACK)\b"),
        ("a path of one machine", r"(?<![\w.])/(work|root|home/\w+|farm)/"),
        (
            "a package registry's host",
            r"//[a-z0-9.-]*(pypi|pythonhosted|npmjs|maven|crates|debian)[a-z0-9.-]*\.(org|io|net|com)/",
        ),
    ],
)
def test_no_committed_file_has(what: str, pattern: str) -> None:
    sought = re.compile(pattern)
    found = []
    for path in _committed():
        if path.suffix not in TEXT or path.stat().st_size > 1 << 20 or "golden" in path.parts or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if sought.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found, what


def test_api_modules_say_the_versions_that_the_registry_serves() -> None:
    from tidelog.api.registry import TABLE

    wrong = []
    for key, entry in TABLE.items():
        path = ROOT / f"src/tidelog/api/{entry.module}.py"
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        wanted = f"(key {key}), v{entry.min_version}-{entry.max_version}"
        single = f"(key {key}), v{entry.min_version}"
        if wanted not in said and not (entry.min_version == entry.max_version and single in said):
            wrong.append(f"{entry.module}: its docstring does not begin with {wanted!r}")
    assert not wrong
