"""The modules that `tidelog start` and `tidelog --help` may import. They cost start-up time and memory: add one only
on purpose.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOADED = """
import atexit, os, signal, sys
atexit.register(lambda: print("LOADED", *sorted(sys.modules), flush=True))
from tidelog.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}
"""A variable that is no setting is looked at for a misspelling, which imports more."""

PYTHON_ITSELF = {"__main__", "_distutils_hack", "sitecustomize", "usercustomize", "_virtualenv", "coverage"}

START_PACKAGES = {"tidelog", "uvloop", "_cython", "cython_runtime"}
START_TIDELOG = {
    "api", "broker", "cli", "config", "coordinator", "log", "metadata", "model", "quotas", "replication",
    "runtime", "wire",
}  # fmt: skip
START_CLI = {"main", "start", "serve", "logs", "escapes", "event_loop"}
START_NOT_OF_THE_LIBRARY = {
    "argparse", "ctypes", "decimal", "difflib", "email", "html", "http", "multiprocessing", "pickle", "shutil",
    "tempfile", "unittest", "uuid", "xml",
}  # fmt: skip

HELP_PACKAGES = {
    "tidelog", "typer", "rich", "annotated_doc", "markdown_it", "mdurl", "pygments", "shellingham", "click",
}  # fmt: skip
HELP_TIDELOG = {"cli"}
HELP_CLI = {"main", "app", "errors", "examples", "output"}
HELP_NOT_OF_THE_LIBRARY = {"asyncio", "concurrent", "http", "multiprocessing", "sqlite3", "ssl", "unittest"}


def loaded(output: str) -> set[str]:
    (line,) = [line for line in output.splitlines() if line.startswith("LOADED")]
    return set(line.split()[1:])


def foreign(modules: set[str]) -> set[str]:
    packages = {name.partition(".")[0] for name in modules}
    # Cython's runtime carries its version in its name: _cython_3_1_2.
    packages = {"_cython" if name.startswith("_cython_") else name for name in packages}
    return packages - set(sys.stdlib_module_names) - PYTHON_ITSELF


def inside(modules: set[str], package: str) -> set[str]:
    """The names right below `package`."""
    prefix = package + "."
    return {name.removeprefix(prefix).partition(".")[0] for name in modules if name.startswith(prefix)}


def test_start_imports_the_broker_and_no_command_line_library(tmp_path: Path) -> None:
    broker = subprocess.Popen(
        [sys.executable, "-c", LOADED, "start", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    )
    assert broker.stdout is not None
    broker.stdout.readline()
    broker.terminate()
    output, _ = broker.communicate(timeout=30)
    modules = loaded(output)
    assert broker.returncode == 0
    assert foreign(modules) <= START_PACKAGES
    assert inside(modules, "tidelog") <= START_TIDELOG
    assert inside(modules, "tidelog.cli") == START_CLI
    assert modules & START_NOT_OF_THE_LIBRARY == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_imports_no_command_and_no_client(arguments: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True, env=os.environ
    )
    modules = loaded(ran.stdout)
    assert foreign(modules) <= HELP_PACKAGES
    assert inside(modules, "tidelog") <= HELP_TIDELOG
    assert inside(modules, "tidelog.cli") == HELP_CLI
    assert not modules & HELP_NOT_OF_THE_LIBRARY
