"""A pipeline's file may import modules in its own directory: the local modules.

These modules are importable only while the file is being loaded. The workers of Spark do not have the directory, so
Spark sends the modules' functions by value, and not only their names (see `loading.send_functions_by_value`).
"""

import ast
import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tidelog.pipelines.declarations import PipelineError


@contextlib.contextmanager
def local_imports(file: Path) -> Iterator[None]:
    """Let the `with` block import modules beside `file`, an absolute path. Installed modules come first in Python's
    path, so that a library never imports a local module instead of an installed one. Raises PipelineError if `file`
    imports the name of a local module, but Python would find another module with this name first.
    """
    directory = str(file.parent)
    importlib.invalidate_caches()  # a module may be newer than Python's list of the directory
    sys.path.append(directory)
    try:
        _check_names(file)
        yield
    finally:
        sys.path.remove(directory)


def imported_local_modules(file: Path) -> list[ModuleType]:
    """Return the modules and packages beside `file` that were imported, without the modules within the packages."""
    return [
        module
        for name, module in list(sys.modules.items())
        if "." not in name and (path := _local_path(file.parent, name)) is not None and _origin(module) == path
    ]


def _check_names(file: Path) -> None:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # running the file reports the error with its line
    for name in sorted(_imported_names(tree)):
        path = _local_path(file.parent, name)
        if path is None:
            continue
        loaded = sys.modules.get(name)
        spec = importlib.util.find_spec(name) if loaded is None else None
        other = _origin(loaded) if loaded is not None else Path(spec.origin) if spec and spec.origin else None
        if other != path:
            found = f"another module {name} ({other or 'a part of Python'})"
            raise PipelineError(f"{file} imports {name}, but Python finds {found} before {path}: rename your module")


def _imported_names(tree: ast.AST) -> set[str]:
    """Return the first parts of all names that are imported absolutely: `a` for `import a.b`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _local_path(directory: Path, name: str) -> Path | None:
    """Return the file of the module or package `name` in the directory; None if there is none."""
    return next((p for p in (directory / name / "__init__.py", directory / f"{name}.py") if p.is_file()), None)


def _origin(module: ModuleType) -> Path | None:
    origin = getattr(module, "__file__", None)
    return Path(origin) if origin else None
