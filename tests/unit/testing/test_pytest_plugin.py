"""The pytest plugin in a separate pytest: its fixture, and that it costs nothing to runs that do not use it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LOADED = """
import atexit, sys
atexit.register(lambda: print("LOADED", *sorted(m for m in sys.modules if m.partition(".")[0] == "tidelog")))
"""


PLUGIN = ("-p", "tidelog.testing.pytest_plugin")


def run_pytest(
    directory: Path,
    tests: str,
    *arguments: str,
    ini: str = "",
    conftest: str = "",
    installed: bool = False,
    code: int = 0,
) -> str:
    """pytest's output; a line that begins with LOADED has the modules of tidelog that it imported.

    `installed`: with whatever plugins the environment has, among them ours; else with the plugins in `arguments` alone.
    """
    environment = dict(os.environ) if installed else os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    (directory / "test_it.py").write_text(textwrap.dedent(tests))
    (directory / "conftest.py").write_text(LOADED + textwrap.dedent(conftest))
    (directory / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, str(directory)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def loaded(output: str) -> list[str]:
    (line,) = [line for line in output.splitlines() if line.startswith("LOADED")]
    return line.split()[1:]


BOOTSTRAPS = """
    import pytest, socket
    seen = []

    def connect(broker):
        host, port = broker.bootstrap.split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        seen.append((broker.bootstrap, broker.data))

    def test_one(tidelog_broker):
        connect(tidelog_broker)

    def test_two(tidelog_broker):
        connect(tidelog_broker)

    @pytest.fixture(scope="module", autouse=True)
    def check():
        yield
        assert len(set(seen)) == {distinct}
"""


def test_collecting_imports_nothing_of_the_broker(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, "def test_it(tidelog_broker): pass", "--collect-only", installed=True)
    assert loaded(output) == ["tidelog", "tidelog.testing", "tidelog.testing.pytest_plugin"]


def test_each_test_has_a_broker_of_its_own(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, BOOTSTRAPS.format(distinct=2), *PLUGIN)
    assert "2 passed" in output
    assert "tidelog.broker.broker" in loaded(output)


def test_one_broker_for_the_session(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, BOOTSTRAPS.format(distinct=1), *PLUGIN, ini="tidelog_broker_scope = session")
    assert "2 passed" in output


def test_under_xdist(tmp_path: Path) -> None:
    many = "import pytest, socket\n@pytest.mark.parametrize('n', range(6))\ndef test_it(tidelog_broker, n):\n"
    many += "    socket.create_connection(('127.0.0.1', tidelog_broker.port), timeout=5).close()\n"
    assert "6 passed" in run_pytest(tmp_path, many, *PLUGIN, "-p", "xdist", "-n", "2")


def test_settings_are_a_fixture_to_override(tmp_path: Path) -> None:
    conftest = """
        import pytest

        @pytest.fixture(scope="session")
        def tidelog_settings():
            return {"num.partitions": 5}
    """
    test = "def test_it(tidelog_broker):\n    assert tidelog_broker.settings['num.partitions'] == '5'\n"
    assert "1 passed" in run_pytest(tmp_path, test, *PLUGIN, conftest=conftest)


OVERRIDING = """
import pytest

@pytest.fixture(scope="session")
def tidelog_settings():
    return {"num.partitions": PARTITIONS}

def test_other(tidelog_broker):
    assert tidelog_broker.settings["num.partitions"] == "PARTITIONS"
"""


@pytest.mark.parametrize("scope", ["session", "package"])
def test_settings_that_would_have_no_effect_are_an_error(tmp_path: Path, scope: str) -> None:
    (tmp_path / "test_other.py").write_text(OVERRIDING.replace("PARTITIONS", "5"))
    test = "def test_it(tidelog_broker): pass\n"
    output = run_pytest(tmp_path, test, *PLUGIN, ini=f"tidelog_broker_scope = {scope}", code=1)
    assert "1 passed, 1 error" in output
    told = f"the tidelog_settings of test_other.py have no effect: tidelog_broker_scope is {scope}, and the broker was"
    assert f"{told} started with the tidelog_settings of test_it.py. Set tidelog_broker_scope = module" in output


def test_a_class_with_settings_of_its_own_needs_a_broker_for_each_class(tmp_path: Path) -> None:
    test = """
import pytest

class TestFirst:
    def test_it(self, tidelog_broker): pass

class TestOther:
    @pytest.fixture(scope="session")
    def tidelog_settings(self):
        return {"num.partitions": 5}

    def test_it(self, tidelog_broker): pass
"""
    output = run_pytest(tmp_path, test, *PLUGIN, ini="tidelog_broker_scope = module", code=1)
    assert "of test_it.py::TestOther::test_it have no effect: tidelog_broker_scope is module, and the broker" in output
    assert "tidelog_settings of test_it.py::TestFirst::test_it. Set tidelog_broker_scope = class or function" in output
    assert "2 passed" in run_pytest(tmp_path, test, *PLUGIN, ini="tidelog_broker_scope = class")


def test_the_same_settings_in_two_modules_share_a_broker(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(OVERRIDING.replace("PARTITIONS", "5"))
    same = OVERRIDING.replace("PARTITIONS", "5")
    assert "2 passed" in run_pytest(tmp_path, same, *PLUGIN, ini="tidelog_broker_scope = session")


def test_each_module_has_its_settings_where_each_has_its_broker(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(OVERRIDING.replace("PARTITIONS", "5"))
    other = OVERRIDING.replace("PARTITIONS", "7")
    assert "2 passed" in run_pytest(tmp_path, other, *PLUGIN, ini="tidelog_broker_scope = module")


def test_a_misspelt_scope_is_one_line(tmp_path: Path) -> None:
    told = run_pytest(
        tmp_path, BOOTSTRAPS, *PLUGIN, ini="tidelog_broker_scope = sesion", code=pytest.ExitCode.USAGE_ERROR
    )
    line = "ERROR: tidelog_broker_scope is 'sesion'; it must be function, class, module, package or session"
    assert [said for said in told.splitlines() if said and not said.startswith("LOADED")] == [line]


CLUSTERS = """
    import pytest
    seen = []

    @pytest.fixture(scope="session")
    def tidelog_cluster_size():
        return 2

    def test_one(tidelog_cluster):
        assert tidelog_cluster.running == [1, 2]
        assert tidelog_cluster.bootstrap.count(":") == 2
        seen.append(tidelog_cluster.data)

    def test_two(tidelog_cluster):
        assert tidelog_cluster.data in seen
        tidelog_cluster.kill(1)
        1 / 0
"""


def test_a_cluster_for_the_module_that_a_failing_test_leaves_broken(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, CLUSTERS, *PLUGIN, ini="tidelog_cluster_scope = module", code=1)
    assert "1 failed, 1 passed" in output
    assert "ZeroDivisionError" in output


def test_settings_of_a_cluster_that_would_have_no_effect_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_first.py").write_text("def test_it(tidelog_cluster): pass\n")
    conftest = "import pytest\n@pytest.fixture(scope='session')\ndef tidelog_cluster_size():\n    return 1\n"
    test = """
        import pytest
        @pytest.fixture(scope="session")
        def tidelog_settings():
            return {"num.partitions": 5}
        def test_it(tidelog_cluster): pass
    """
    output = run_pytest(tmp_path, test, *PLUGIN, ini="tidelog_cluster_scope = session", conftest=conftest, code=1)
    assert (
        "tidelog_cluster_scope is session, and the cluster was started with the tidelog_settings of test_first.py"
        in output
    )
