"""Load the pipelines that a Python file declares."""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tidelog.pipelines.declarations import ATTRIBUTE, Pipeline, PipelineError
from tidelog.pipelines.local_modules import imported_local_modules, local_imports

MODULE_PREFIX = "tidelog_pipelines_"
"""Beginning of the module names of pipeline files."""

NO_SESSION = "SESSION_OR_CONTEXT_NOT_EXISTS"
"""The error condition that PySpark reports if a call needs a session and no session was started."""


def load(reference: str) -> list[Pipeline]:
    """Load `FILE` or `FILE:NAME`, and return the pipelines of the file in the order of their declarations.

    With NAME, return only the pipeline of this name, or, if there is none, the pipeline whose function has this name.
    Raises PipelineError.
    """
    file_name, name = split_reference(reference)
    found = pipelines_of(load_module(Path(file_name)))
    if not found:
        raise PipelineError(f"{file_name} declares no pipeline: put @pipeline(source=..., sink=...) before a function")
    if not name:
        return found
    chosen = [each for each in found if each.name == name] or [each for each in found if each.function.__name__ == name]
    if not chosen:
        raise PipelineError(f"{file_name} declares no pipeline {name}; it has {', '.join(p.name for p in found)}")
    if len(chosen) > 1:
        names = ", ".join(each.name for each in chosen)
        raise PipelineError(f"{file_name}: several pipelines have the function {name}: use one of their names: {names}")
    return chosen


def split_reference(reference: str) -> tuple[str, str]:
    """Split `FILE:NAME` into file and name. Without `:NAME`, the name is empty."""
    file_name, colon, name = reference.rpartition(":")
    return (file_name, name) if colon and not name.endswith(".py") else (reference, "")


def load_module(path: Path) -> ModuleType:
    """Run the file as a module, and return the module. The module's name begins with MODULE_PREFIX, so that the module
    cannot replace another one. The file can import installed packages, and modules in its own directory. Raises
    PipelineError.
    """
    resolved = path.resolve()
    if not resolved.is_file():
        raise PipelineError(f"there is no file {path}")
    name = f"{MODULE_PREFIX}{resolved.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise PipelineError(f"{path} is not a Python file: its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with local_imports(resolved):
            spec.loader.exec_module(module)
    except PipelineError:
        del sys.modules[name]
        raise
    except ModuleNotFoundError as error:
        del sys.modules[name]
        raise PipelineError(
            f"{path}: there is no module {error.name}: install it, or put its file into the directory of {path.name}"
        ) from error
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        line = _line_in(error, resolved)
        if NO_SESSION in str(error):
            raise PipelineError(
                f"{path}{line}: this needs Spark, which starts after the file is loaded: move the code into the"
                " pipeline's function; or, in a decorator such as udf, give the type as an object, such as LongType()"
            ) from error
        raise PipelineError(f"{path}{line}: {type(error).__name__}: {error}") from error
    return module


def send_functions_by_value(pipeline: Pipeline) -> None:
    """Make Spark send functions and classes to its workers by value, if they are defined in the pipeline's file or in
    an imported module beside this file.

    By default Spark sends only the names of functions and classes, and the workers cannot import these modules. Call
    this before the first source of the pipeline is loaded: Spark serializes a function when a column that uses the
    function is created.
    """
    from pyspark import cloudpickle

    module = sys.modules.get(pipeline.function.__module__)
    if module is not None and module.__name__.startswith(MODULE_PREFIX):
        assert module.__file__ is not None  # `load_module` made it from a file
        for each in (module, *imported_local_modules(Path(module.__file__))):
            cloudpickle.register_pickle_by_value(each)


def _line_in(error: BaseException, path: Path) -> str:
    """Return `:LINE` for the deepest frame of the traceback that runs the file `path`, or an empty text if there is no
    such frame. For a SyntaxError in `path`, LINE is the line that the error itself names. For a SyntaxError in another
    file, LINE is the line of `path` that imports the other file. The error's text names the other file and its line.
    """
    if isinstance(error, SyntaxError) and error.filename is not None and Path(error.filename) == path:
        return "" if error.lineno is None else f":{error.lineno}"
    line, trace = "", error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == path:
            line = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def pipelines_of(module: ModuleType) -> list[Pipeline]:
    """Return the declared pipelines among the module's attributes. Raises PipelineError if two have the same name."""
    found: dict[str, Pipeline] = {}
    for value in list(vars(module).values()):
        declared = getattr(value, ATTRIBUTE, None)
        if not isinstance(declared, Pipeline):
            continue
        other = found.setdefault(declared.name, declared)
        if other is not declared:
            raise PipelineError(f"two pipelines are named {declared.name}: give one of them another name=...")
    return [*found.values()]


def declared_pipeline(value: "Pipeline | Callable[..., Any]") -> Pipeline:
    """Return the pipeline that a function declares, or `value` itself if it is a Pipeline. Raises PipelineError for any
    other value.
    """
    declared = value if isinstance(value, Pipeline) else getattr(value, ATTRIBUTE, None)
    if not isinstance(declared, Pipeline):
        raise PipelineError(f"{value!r} is not a pipeline: put @pipeline(source=..., sink=...) before the function")
    return declared
