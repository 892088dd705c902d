"""The rules of this repository that no linter checks. Each test lists the files and lines that break its rule."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
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
"""Modules that access the machine or the network. The product may use them only through the runtime."""

MAY_REACH_OUTSIDE = (
    "tidelog/runtime/",
    "tidelog/simulation/",
    "tidelog/cli/",
    "tidelog/testing/",
    "tidelog/demo/",
    "tidelog/metadata/etcd_gateway.py",
    "tidelog/metadata/sqlite.py",
    "tidelog/metadata/zookeeper_session.py",
    "tidelog/client/blocking.py",
    "tidelog/client/link.py",
    "tidelog/__main__.py",
    "tidelog/pipelines/",
    "pyspark_tidelog/",
)

LOOP_CHOICES = {
    "create_task", "ensure_future", "get_event_loop", "get_running_loop", "new_event_loop", "open_connection", "run",
    "sleep", "start_server", "to_thread",
}  # fmt: skip
"""Functions of asyncio that a virtual clock or a simulated network cannot replace."""


def _modules_listed_as(heading: str) -> tuple[str, ...]:
    """Return the modules that ARCHITECTURE.md lists in the paragraph that begins with this bold heading."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    paragraph = re.search(rf"^\*\*{heading}\*\*.*?: (.*?)\.$", text, re.DOTALL | re.MULTILINE)
    assert paragraph is not None, f"ARCHITECTURE.md has no list of modules: {heading}"
    return tuple(f"tidelog/{name}" for name in re.findall(r"`([\w/.]+)`", paragraph[1]))


PURE = _modules_listed_as("Pure")
"""Modules whose results depend on their arguments only: the time is an argument, and their callers do all waiting."""

CALLED_BY_FRAMEWORKS = {
    "bind_expression", "cache_ok", "do_GET", "log_message",
    "getDefaultReadLimit", "initialOffset", "latestOffset", "list_commands", "on_broken_pipe",
    "onQueryIdle", "onQueryProgress", "onQueryStarted", "onQueryTerminated", "prepareForTriggerAvailableNow",
    "pushFilters", "pytest_addoption", "pytest_configure", "reportLatestOffset", "streamReader", "streamWriter",
    "writer",
}  # fmt: skip
"""Methods and hooks that are called only by click, http.server, rich, pytest, Spark or SQLAlchemy."""

CALLED_BY_USERS = {"lag_listener"}
"""Documented functions that only programs of users call."""

WHOLE_TABLES = ("tidelog/wire/errors.py",)

CAN_FAIL = re.compile(r"assert|check|expect|raises|warns|until|attacked|or_refuse|compare|agree|fail")
"""Matches the names of functions that raise if what they check is wrong. A test that calls one of them can fail."""


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT / "src"))


def _pure_product() -> Iterator[tuple[Path, ast.Module]]:
    for path in PRODUCT:
        if not _relative(path).startswith(MAY_REACH_OUTSIDE):
            yield path, _parse(path)


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


def test_pure_modules_neither_wait_nor_know_a_runtime() -> None:
    found = [name for name in PURE if not any(_relative(path).startswith(name) for path in PRODUCT)]
    for path in PRODUCT:
        if not _relative(path).startswith(PURE):
            continue
        for node in _run_time_nodes(_parse(path)):
            names: list[str] = []
            if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
                found.append(f"{_relative(path)}:{node.lineno}: waits")
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            if any(
                name.partition(".")[0] in {"asyncio", "logging"} or name.startswith("tidelog.run") for name in names
            ):
                found.append(f"{_relative(path)}:{node.lineno}: {', '.join(names)}")  # type: ignore[attr-defined]
    assert not found


def _run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those below `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from _run_time_nodes(node)


def test_no_set_is_walked_where_the_order_can_be_seen() -> None:
    found = []
    for path, tree in _pure_product():
        for scope in ast.walk(tree):
            if isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
                known = _names_of_sets(scope)
                found += [f"{_relative(path)}:{over.lineno}" for over in _iterated(scope) if _is_set(over, known)]
    assert not found


def _names_of_sets(scope: ast.AST) -> dict[str, None]:
    """Return the names to which `scope` assigns a set, or which it annotates as a set."""
    known: dict[str, None] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and _is_set(node.value, {}):
            known.update((target.id, None) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and _is_set_annotation(node.annotation):
            known[ast.unparse(node.target)] = None
        elif isinstance(node, ast.arg) and node.annotation is not None and _is_set_annotation(node.annotation):
            known[node.arg] = None
    return known


def _iterated(scope: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions over which `scope` iterates in an order that can be seen."""
    for node in ast.walk(scope):
        if isinstance(node, ast.For | ast.comprehension):
            yield node.iter
        elif isinstance(node, ast.Call) and len(node.args) == 1:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"list", "tuple", "iter", "enumerate", "join", "extend", "fromkeys"}:
                yield node.args[0]


def _is_set(value: ast.expr, known: dict[str, None]) -> bool:
    if isinstance(value, ast.Name | ast.Attribute):
        return ast.unparse(value) in known
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in {"set", "frozenset"}
    return isinstance(value, ast.Set | ast.SetComp)


def _is_set_annotation(annotation: ast.expr) -> bool:
    return re.match(r"['\"]?(set|frozenset|AbstractSet)\b", ast.unparse(annotation)) is not None


def test_nothing_is_defined_that_the_product_does_not_use() -> None:
    """Code that only tests call is dead, or belongs to a harness of the tests.

    Exceptions are `simulation/`, which is such a harness, and Kafka's error codes, a table that is complete on purpose.
    """
    uses = {path: Uses(path) for path in [*PRODUCT, *_scripts()] if GENERATED not in path.parents}
    anywhere = {name for used in uses.values() for name in used.anywhere}
    bare = {name for used in uses.values() for name in used.by_bare_name}
    found = []
    for path in PRODUCT:
        relative = _relative(path)
        if path not in uses or relative.startswith("tidelog/simulation/") or relative in WHOLE_TABLES:
            continue
        by_bare_name = {"method": set(), "field": bare, "other": uses[path].by_bare_name}
        for name, line, kind in _definitions(_parse(path)):
            is_used = name in anywhere or name in by_bare_name[kind] or name in CALLED_BY_FRAMEWORKS | CALLED_BY_USERS
            if not is_used and not name.startswith("__"):
                found.append(f"{relative}:{line}: {name}")
    assert not found


class Uses:
    """The names that a file uses, without those that it only defines or lists."""

    def __init__(self, path: Path) -> None:
        self.by_bare_name: set[str] = set()
        """Names without a dot: the file's own functions, classes and constants, and local variables."""
        self.anywhere: set[str] = set()
        """Attributes, imports, and words in texts (which may name modules and types). Any file may define them."""
        text = path.read_text(errors="replace")
        if path.suffix != ".py" and not text.startswith("#!/usr/bin/env python"):
            self.anywhere.update(re.findall(r"\w+", text))  # a shell script
            return
        tree = _parse(path)
        listed = {id(part) for node in ast.walk(tree) for part in _listing_nodes(node)}
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    self.by_bare_name.add(name)
                case ast.Attribute(attr=name, ctx=ast.Load()):
                    self.anywhere.add(name)
                case ast.alias(name=name):
                    self.anywhere.add(name.rpartition(".")[2])
                case ast.Constant(value=str(text)) if id(node) not in listed:
                    self.anywhere.update(re.findall(r"\w+", text))
                case ast.MatchClass(kwd_attrs=names):
                    self.anywhere.update(names)


def _scripts() -> list[Path]:
    return [path for path in sorted((ROOT / "script").iterdir()) if path.suffix in {".py", ""} and path.is_file()]


def _listing_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield docstrings, `__all__` and `__slots__`, in which a name is not a use of it."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        for statement in node.body:
            match statement:
                case ast.Expr(value=ast.Constant() as text):
                    yield text
                case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")], value=value):
                    yield from ast.walk(value)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield (name, line, kind) of every definition. The kind is "method", "field" (of a class) or "other".

    Functions and classes with other decorators than those of methods are left out: the decorator uses them.
    """
    methods = {
        id(statement)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [ast.unparse(decorator) for decorator in node.decorator_list]
            if all(name in {"property", "staticmethod", "classmethod"} for name in names):
                yield node.name, node.lineno, "method" if id(node) in methods else "other"
        if isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.Assign):
                    yield from ((t.id, t.lineno, "other") for t in statement.targets if isinstance(t, ast.Name))
                elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id, statement.lineno, "field" if isinstance(node, ast.ClassDef) else "other"


def test_log_lines_have_tidelogs_names_and_their_arguments_beside_them() -> None:
    found = []
    for path in PRODUCT:
        for node in ast.walk(_parse(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            first = node.args[0]
            if node.func.attr == "getLogger" and not ast.unparse(first).startswith(("'tidelog", "'pyspark_tidelog")):
                found.append(f"{_relative(path)}:{node.lineno}: {ast.unparse(node)}")
            on_logger = isinstance(node.func.value, ast.Name) and node.func.value.id in {"log", "logger"}
            # Formatting before the call would take time even if the line is not logged.
            if on_logger and isinstance(first, ast.JoinedStr | ast.BinOp):
                found.append(f"{_relative(path)}:{node.lineno}: {ast.unparse(first)}")
    assert not found


def test_every_test_can_fail() -> None:
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        functions = [n for n in ast.walk(_parse(path)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        checking: dict[str, None] = {}
        for _ in range(2):  # first functions that check, then those of the same file that call them
            checking.update((f.name, None) for f in functions if any(_can_fail(n, checking) for n in ast.walk(f)))
        found += [
            f"{path.relative_to(ROOT)}:{function.lineno}: {function.name}"
            for function in functions
            if function.name.startswith("test_") and function.name not in checking
        ]
    assert not found


def _can_fail(node: ast.AST, checking: dict[str, None]) -> bool:
    if isinstance(node, ast.Assert):
        return not (isinstance(node.test, ast.Constant) and node.test.value)
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        is_check = called in checking or any(keyword.arg == "check" for keyword in node.keywords)
        return is_check or CAN_FAIL.search(called) is not None
    return isinstance(node, ast.Raise)


def test_unit_tests_stand_where_the_code_stands() -> None:
    packages = {path.parent.name for path in PRODUCT if path.name == "__init__.py"} | {"pyspark_tidelog"}
    other_directories = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests/unit").iterdir()
        if path.is_dir() and path.name not in packages and path.name != "__pycache__"
    ]
    assert not other_directories


def test_functions_and_files_stay_short() -> None:
    found = []
    for path in PRODUCT:
        if GENERATED in path.parents:
            continue
        text = path.read_text()
        if text.count("\n") > FILE_LINES_MAX:
            found.append(f"{_relative(path)}: {text.count(chr(10))} lines")
        for node in ast.walk(_parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    found.append(f"{_relative(path)}:{node.lineno}: {node.name} has {lines} lines")
    assert not found


def test_every_module_says_its_duty() -> None:
    missing = [_relative(p) for p in PRODUCT if p.read_text().strip() and not ast.get_docstring(_parse(p))]
    assert not missing


def test_files_are_named_for_their_duty() -> None:
    meaningless = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    assert not [_relative(p) for p in PRODUCT if p.name in meaningless]


def _committed_files() -> list[Path]:
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
    forbidden = re.compile(pattern)
    found = []
    for path in _committed_files():
        if path.suffix not in TEXT or path.stat().st_size > 1 << 20 or "golden" in path.parts or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if forbidden.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found, what


def test_api_modules_say_the_versions_that_the_registry_serves() -> None:
    from tidelog.api.registry import TABLE

    wrong = []
    for key, entry in TABLE.items():
        path = ROOT / f"src/tidelog/api/{entry.module}.py"
        said = ast.get_docstring(_parse(path)) or ""
        wanted = f"(key {key}), v{entry.min_version}-{entry.max_version}"
        single = f"(key {key}), v{entry.min_version}"
        if wanted not in said and not (entry.min_version == entry.max_version and single in said):
            wrong.append(f"{entry.module}: its docstring does not begin with {wanted!r}")
    assert not wrong
