"""A broker belongs to the process that started it: it continues to serve, whatever a forked child does or leaves.

Each case is a program of its own, run as a file. It prints SERVES when a record was acknowledged after its children had
ended; afterwards nothing may be left of the broker.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

LIMIT_S = 180
BOTH = pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on POSIX only")

BEGIN = """
import asyncio, atexit, concurrent.futures, contextlib, copy, gc, multiprocessing, os, pathlib, pickle, signal, socket
import sys, threading, time, weakref
from tidelog.testing import Broker

def wait(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def check_serves(broker):
    from confluent_kafka import Producer

    assert broker.data.exists(), "the data directory is gone"
    failures = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 20000})
    producer.produce(f"topic-{time.monotonic_ns()}", b"value", on_delivery=lambda error, _: failures.append(error))
    producer.flush(30)
    assert failures == [None], failures
    os.write(1, b"SERVES\\n")  # one write: parent and child may get here at the same time

def connects(address):
    host, port = address.split(":")
    socket.create_connection((host, int(port)), timeout=10).close()
    return address
"""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory with a short path: a fork server binds a Unix socket in it, whose path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="fork-") as path:
        yield Path(path)


def run_program(directory: Path, program: str, *, process: bool = False) -> "subprocess.CompletedProcess[str]":
    """The program's end. Its temporary directories are made in `directory / "tmp"`."""
    (directory / "tmp").mkdir(exist_ok=True)
    file = directory / "program.py"
    file.write_text(BEGIN + f"PROCESS = {process}\n" + textwrap.dedent(program))
    # From 3.12 on, Python warns of every fork of a process that has threads.
    environment = {**os.environ, "TMPDIR": str(directory / "tmp"), "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    command = [sys.executable, str(file)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, process_group=0, **streams) as running:
        try:
            stdout, stderr = running.communicate(timeout=LIMIT_S)
        finally:
            with suppress(ProcessLookupError):  # nothing is left when all is well; children of a program that hangs are
                os.killpg(running.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, running.returncode, stdout, stderr)


def check_served_and_cleaned(directory: Path, ended: "subprocess.CompletedProcess[str]", *stderr: str) -> None:
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "SERVES"
    assert all(expected in ended.stderr for expected in stderr), ended.stderr
    assert stderr or not ended.stderr, ended.stderr
    left = [path.name for path in (directory / "tmp").glob("tidelog-*")]
    assert not left, "the owner's end cleans up"


ENDINGS = {
    "return": "",
    "sys.exit(0)": "",
    "raise SystemExit('exit of the child')": "exit of the child",
    "raise ValueError('error of the child')": "error of the child",
    "os.kill(os.getpid(), signal.SIGINT)": "KeyboardInterrupt",
    "os._exit(0)": "",
    "os.abort()": "",
    "os.kill(os.getpid(), signal.SIGKILL)": "",
    "os.execvp(sys.executable, [sys.executable, '-c', ''])": "",
    "broker.stop(); os._exit(0)": "",
    "broker.stop(); broker.stop(); sys.exit()": "",
    "del broker; gc.collect(); sys.exit()": "",
    "os.fork(); sys.exit()": "",
    "os.setsid(); os.fork() and os._exit(0); sys.exit()": "",
    "atexit._run_exitfuncs(); os._exit(0)": "",
}
"""How a child ends that was forked inside the block, and what that leaves on stderr."""
FORK = """
        child = os.fork()
        if not child:
            {ending}
        wait(child)
        check_serves(broker)
"""


@BOTH
def test_children_of_os_fork(tmp_path: Path, process: bool) -> None:
    forks = "".join(FORK.format(ending=ending) for ending in ENDINGS)
    program = f"def main():\n    with Broker(process=PROCESS) as broker:{forks}\nmain()"
    ended = run_program(tmp_path, program, process=process)
    check_served_and_cleaned(tmp_path, ended, *filter(None, ENDINGS.values()))
    assert ended.stdout.count("SERVES") == len(ENDINGS)


def test_children_of_os_fork_beside_a_cluster(tmp_path: Path) -> None:
    forks = "".join(FORK.format(ending=ending) for ending in ENDINGS)
    program = f"from tidelog.testing import Cluster\ndef main():\n    with Cluster(2) as broker:{forks}\nmain()"
    ended = run_program(tmp_path, program)
    check_served_and_cleaned(tmp_path, ended, *filter(None, ENDINGS.values()))
    assert ended.stdout.count("SERVES") == len(ENDINGS)


def test_a_cluster_of_the_childs_own(tmp_path: Path) -> None:
    """Both are ended by their own processes, also if nobody stops them and the child ends in an exception."""
    program = """
        from tidelog.testing import Cluster

        def main():
            owners = Cluster(2)
            owners.start()
            child = os.fork()
            if not child:
                own = Cluster(1)
                own.start()
                check_serves(own)
                assert own.data != owners.data
                raise ValueError("error of the child")
            assert wait(child) == 1
            check_serves(owners)

        main()
    """
    check_served_and_cleaned(tmp_path, run_program(tmp_path, program), "error of the child")


OTHER_WAYS_TO_HOLD_IT = {
    "start and stop": """
        broker = Broker(process=PROCESS)
        broker.start()
        try:
            child = os.fork()
            if not child:
                sys.exit()
            wait(child)
            check_serves(broker)
        finally:
            broker.stop()
    """,
    "exit stack": """
        with contextlib.ExitStack() as stack:
            broker = stack.enter_context(Broker(process=PROCESS))
            child = os.fork()
            if not child:
                sys.exit()
            wait(child)
            check_serves(broker)
    """,
    # asyncio itself cannot end a loop in a child: it would take the selector of both apart.
    "async with": """
        async def main():
            async with Broker(process=PROCESS) as broker:
                child = os.fork()
                if not child:
                    return
                await asyncio.to_thread(wait, child)
                check_serves(broker)

        owner = os.getpid()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        if os.getpid() != owner:
            os._exit(0)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    """,
    "generator that is collected": """
        def brokers():
            with Broker(process=PROCESS) as broker:
                yield broker

        generator = brokers()
        broker = next(generator)
        child = os.fork()
        if not child:
            del generator
            gc.collect()
            sys.exit()
        wait(child)
        check_serves(broker)
        generator.close()
    """,
    "object whose __del__ stops it": """
        class Service:
            def __init__(self):
                self.broker = Broker(process=PROCESS)
                self.broker.start()

            def __del__(self):
                self.broker.stop()

        service = Service()
        child = os.fork()
        if not child:
            del service
            sys.exit()
        wait(child)
        check_serves(service.broker)
        del service
    """,
    "weakref.finalize": """
        class Service:
            pass

        service, broker = Service(), Broker(process=PROCESS)
        broker.start()
        weakref.finalize(service, broker.stop)
        child = os.fork()
        if not child:
            sys.exit()
        wait(child)
        check_serves(broker)
    """,
    "atexit": """
        broker = Broker(process=PROCESS)
        broker.start()
        atexit.register(broker.stop)
        child = os.fork()
        if not child:
            sys.exit()
        wait(child)
        check_serves(broker)
    """,
    "forgotten": """
        broker = Broker(process=PROCESS)
        broker.start()
        child = os.fork()
        if not child:
            sys.exit()
        wait(child)
        check_serves(broker)
    """,
    "a signal's handler": """
        broker = Broker(process=PROCESS)
        broker.start()

        def stop(number, frame):
            broker.stop()
            sys.exit()

        signal.signal(signal.SIGTERM, stop)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.write(write, b".")
            while True:
                signal.pause()
        os.read(read, 1)  # Python drops what a handler raises while it is still forking
        os.kill(child, signal.SIGTERM)
        assert wait(child) == 0
        check_serves(broker)
        os.kill(os.getpid(), signal.SIGTERM)
    """,
    "fork in a thread": """
        with Broker(process=PROCESS) as broker:
            def fork():
                child = os.fork()
                if not child:
                    broker.stop()
                    os._exit(0)
                wait(child)

            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
            check_serves(broker)
    """,
    "many children at once": """
        with Broker(process=PROCESS) as broker:
            children = []
            for _ in range(20):
                child = os.fork()
                if not child:
                    connects(broker.bootstrap)
                    sys.exit()
                children.append(child)
            assert [wait(child) for child in children] == [0] * 20
            check_serves(broker)
    """,
    "restart after a child": """
        with Broker(process=PROCESS) as broker:
            child = os.fork()
            if not child:
                sys.exit()
            wait(child)
            broker.restart()
            check_serves(broker)
    """,
}


@BOTH
@pytest.mark.parametrize("how", OTHER_WAYS_TO_HOLD_IT)
def test_other_ways_to_hold_it(tmp_path: Path, process: bool, how: str) -> None:
    ended = run_program(tmp_path, OTHER_WAYS_TO_HOLD_IT[how], process=process)
    check_served_and_cleaned(tmp_path, ended)


POOLS = """
def main():
    with Broker(process=PROCESS) as broker:
        context = multiprocessing.get_context(METHOD)
        addresses = [broker.bootstrap] * 4
        child = context.Process(target=connects, args=[broker.bootstrap])
        child.start()
        child.join()
        assert child.exitcode == 0
        check_serves(broker)
        with context.Pool(2) as pool:
            assert pool.map(connects, addresses) == addresses
        check_serves(broker)
        with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
            assert list(pool.map(connects, addresses)) == addresses
        check_serves(broker)

if __name__ == "__main__":
    main()
"""


@BOTH
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_and_pools_of_multiprocessing(tmp_path: Path, process: bool, method: str) -> None:
    ended = run_program(tmp_path, f"METHOD = {method!r}\n{POOLS}", process=process)
    check_served_and_cleaned(tmp_path, ended)
    assert ended.stdout.count("SERVES") == 3


@BOTH
def test_a_target_that_stops_it(tmp_path: Path, process: bool) -> None:
    """Arguments of the start method "fork" are not pickled: the child has the parent's broker itself."""
    program = """
        with Broker(process=PROCESS) as broker:
            child = multiprocessing.get_context("fork").Process(target=Broker.stop, args=[broker])
            child.start(); child.join(); assert child.exitcode == 0
            check_serves(broker)
    """
    check_served_and_cleaned(tmp_path, run_program(tmp_path, program, process=process))


@BOTH
def test_a_child_is_told_whose_broker_it_is(tmp_path: Path, process: bool) -> None:
    program = """
        def refused(call):
            try:
                call()
            except RuntimeError as error:
                return str(error)

        with Broker(process=PROCESS) as broker:
            owner = os.getpid()
            child = os.fork()
            if not child:
                told = f"this broker belongs to process {owner}, which started it; this is process {os.getpid()}"
                for call in (broker.start, broker.restart, broker.kill, broker.__enter__):
                    assert refused(call).startswith(told), refused(call)
                assert repr(broker) == f"<Broker {broker.bootstrap} of process {owner}>", repr(broker)
                connects(broker.bootstrap)
                assert broker.data.exists()
                assert (broker.pid == owner) != PROCESS
                assert not PROCESS or "TIDELOG" in broker.log().upper() or broker.log() == ""
                os._exit(0)
            assert wait(child) == 0
            check_serves(broker)
    """
    check_served_and_cleaned(tmp_path, run_program(tmp_path, program, process=process))


@BOTH
def test_a_running_broker_is_not_copied(tmp_path: Path, process: bool) -> None:
    program = """
        with Broker(process=PROCESS) as broker:
            for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                try:
                    copied(broker)
                except TypeError as error:
                    assert str(error).startswith(f"this broker belongs to process {os.getpid()}"), error
                    assert broker.bootstrap in str(error)
                else:
                    raise AssertionError(copied)
            check_serves(broker)
        assert pickle.loads(pickle.dumps(broker)).data is None
    """
    check_served_and_cleaned(tmp_path, run_program(tmp_path, program, process=process))


@BOTH
@pytest.mark.parametrize("parents", ["running", "stopped", "started, in a loop of its own", "never started"])
def test_a_child_has_a_broker_of_its_own(tmp_path: Path, process: bool, parents: str) -> None:
    ended = run_program(
        tmp_path,
        f"""
        PARENTS = {parents!r}

        def own():
            with Broker(process=PROCESS) as broker:
                check_serves(broker)
                return broker.bootstrap

        def in_child():
            child = os.fork()
            if not child:
                own()
                sys.exit()
            assert wait(child) == 0

        broker = Broker(process=PROCESS)
        if PARENTS == "running":
            with broker:
                check_serves(broker)
                in_child()
                check_serves(broker)
        elif PARENTS == "stopped":
            with broker:
                check_serves(broker)
            in_child()
        elif PARENTS == "never started":
            child = os.fork()
            with broker:
                check_serves(broker)
            if not child:
                sys.exit()
            assert wait(child) == 0
        else:
            async def main():
                async with broker:
                    await asyncio.to_thread(check_serves, broker)
                    child = os.fork()
                    if not child:
                        own()
                        os._exit(0)
                    assert await asyncio.to_thread(wait, child) == 0
                    check_serves(broker)

            try:
                import uvloop
            except ImportError:
                asyncio.run(main())
            else:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(main())
        """,
        process=process,
    )
    check_served_and_cleaned(tmp_path, ended)


@BOTH
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_broker_that_a_child_forgets_to_stop_leaves_no_directory(tmp_path: Path, process: bool, method: str) -> None:
    """multiprocessing ends its children without the functions of atexit."""
    program = f"""
        def work():
            broker = Broker(process=PROCESS)
            broker.start()
            check_serves(broker)

        if __name__ == "__main__":
            child = multiprocessing.get_context("{method}").Process(target=work)
            child.start(); child.join(); assert child.exitcode == 0
    """
    check_served_and_cleaned(tmp_path, run_program(tmp_path, program, process=process))


def test_a_child_takes_the_data_of_its_ended_parent(tmp_path: Path) -> None:
    """What the parent had locked in this process's table is not locked any more."""
    program = f"""
        broker = Broker(data={str(tmp_path / "data")!r})
        broker.start()
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)  # the parent has stopped its own
            with Broker(data={str(tmp_path / "data")!r}) as own:
                check_serves(own)
            sys.exit()
        broker.stop()
        os.write(write, b".")
        assert wait(child) == 0
    """
    check_served_and_cleaned(tmp_path, run_program(tmp_path, program))


@BOTH
def test_a_child_that_lives_on_does_not_hold_what_the_broker_gives_back(tmp_path: Path, process: bool) -> None:
    """Sockets are inherited: a port would stay busy, and clients would wait for ever."""
    program = """
        with Broker(process=PROCESS) as broker:
            client = socket.create_connection(("127.0.0.1", broker.port), timeout=20)
            check_serves(broker)
            read, write = os.pipe()
            child = os.fork()
            if not child:
                client.close()
                os.close(write)
                if not PROCESS:
                    descriptors = pathlib.Path("/proc/self/fd").iterdir()
                    held = [str(descriptor.readlink()) for descriptor in descriptors if descriptor.is_symlink()]
                    data = [name for name in held if str(broker.data) in name and "metadata.sqlite" not in name]
                    assert not data, data
                os.read(read, 1)
                os._exit(0)
            address, port = broker.bootstrap, broker.port
            broker.stop()
            assert client.recv(1) == b"", "the broker's end of the connection is open still"
            try:
                connects(address)
            except ConnectionRefusedError:
                pass
            else:
                raise AssertionError("the port is busy")
            broker.start()
            assert broker.port == port
            check_serves(broker)
            os.write(write, b".")
            assert wait(child) == 0
    """
    check_served_and_cleaned(tmp_path, run_program(tmp_path, program, process=process))


@BOTH
def test_a_child_that_outlives_a_killed_parent_does_not_keep_its_broker(tmp_path: Path, process: bool) -> None:
    program = f"""
broker = Broker(process={process}, data={str(tmp_path / "data")!r})
broker.start()
check_serves(broker)
child = os.fork()
if not child:
    while True:
        signal.pause()
print(broker.port, child, broker.pid, flush=True)
signal.pause()
"""
    command = [sys.executable, "-c", BEGIN + program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "SERVES\n"
        port, child, _ = map(int, parent.stdout.readline().split())
        try:
            parent.kill()
            parent.wait(LIMIT_S)
            deadline = time.monotonic() + LIMIT_S
            while listens(port):
                assert time.monotonic() < deadline, "the broker, or its port, is still there"
                time.sleep(0.01)
            os.kill(child, 0)
            again = f"""
                with Broker(process=PROCESS, data={str(tmp_path / "data")!r}, port={port}) as broker:
                    check_serves(broker)
            """
            check_served_and_cleaned(tmp_path, run_program(tmp_path, again, process=process))
        finally:
            os.kill(child, signal.SIGKILL)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


SERVED = """
import os, pathlib, time
from tidelog.testing import Broker

broker = Broker(process=PROCESS)
broker.start()

def app(environ, start_response):
    from confluent_kafka import Producer

    failures = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 20000})
    producer.produce("orders", b"value", on_delivery=lambda error, _: failures.append(error))
    producer.flush(30)
    body = f"{os.getpid()} {failures} {broker.data.exists()}".encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""


@BOTH
def test_workers_of_gunicorn_that_end_after_each_request(tmp_path: Path, process: bool) -> None:
    """The application is loaded, and starts the broker, before the workers are forked."""
    pytest.importorskip("gunicorn")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "application.py").write_text(f"PROCESS = {process}\n{SERVED}")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        options = ["--preload", "--workers", "2", "--max-requests", "1", "--bind", f"fd://{listening.fileno()}"]
        master = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options, "application:app"],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
            pass_fds=[listening.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
    workers = set()
    with master:
        for _ in range(5):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=LIMIT_S) as answer:
                worker, told = answer.read().decode().split(" ", 1)
            workers.add(worker)
            assert told == "[None] True"
        master.terminate()
        _, said = master.communicate(timeout=LIMIT_S)
    assert master.returncode == 0, said
    assert len(workers) > 2, "each worker ends after a request, and another is forked"
    assert not list((tmp_path / "tmp").glob("tidelog-*"))


FORKED_TESTS = """
import os, pytest, socket
from _pytest.runner import runtestprotocol

def pytest_configure(config):
    config.addinivalue_line("markers", "forked: runs in a child of its own")

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    '''As pytest-forked does: all fixtures that are set up are torn down in the child, whatever their scope.'''
    if not item.get_closest_marker("forked"):
        return None
    child = os.fork()
    if not child:
        reports = runtestprotocol(item, log=False)
        os._exit(any(report.failed for report in reports))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, item.nodeid
    return True
"""
IN_FORKED_TESTS = """
import pytest, socket

def connect(broker):
    for address in broker.bootstrap.split(","):
        host, port = address.split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
    assert broker.data.exists()

def test_in_the_run_itself(tidelog_broker):
    connect(tidelog_broker)

@pytest.mark.forked
def test_in_a_child(tidelog_broker):
    connect(tidelog_broker)

def test_in_the_run_again(tidelog_broker):
    connect(tidelog_broker)
"""


@pytest.mark.parametrize("fixture", ["tidelog_broker", "tidelog_cluster"])
@pytest.mark.parametrize("scope", ["function", "session"])
def test_the_fixture_in_forked_tests(tmp_path: Path, scope: str, fixture: str) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "conftest.py").write_text(FORKED_TESTS)
    (tmp_path / "test_it.py").write_text(IN_FORKED_TESTS.replace("tidelog_broker", fixture))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{fixture}_scope = {scope}\n")
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "tidelog.testing.pytest_plugin",
            str(tmp_path),
        ],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout
    assert not list((tmp_path / "tmp").glob("tidelog-*"))
