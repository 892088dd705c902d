"""Run a conversation with a broker: send its requests, set its variables, and collect the outcome of each step."""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import messages
from .builders import BUILDERS
from .conversation import Condition, Run, Step, TreePath
from .messages import Tree
from .values import BadText, evaluate

LENGTH = struct.Struct(">i")
ANSWER_TIMEOUT_S = 12.0
UNANSWERED_S = 1.5  # how long to wait for the answer to a step with the directive `unanswered`
UNTIL_TIMEOUT_S = 20.0  # time limit for a condition of the directive `until`
UNTIL_PAUSE_S = 0.02  # pause before the request is repeated
FRAME_BYTES_MAX = 64 << 20
PIPELINED = 200  # requests of the directive `times` that are sent at once


class Outcome(NamedTuple):
    """The result of one step."""

    step: int  # index in the conversation
    kind: str  # "answer", "closed", "silent" (no answer is expected), "nothing" (no answer in time)
    api_key: int  # -1 if the frame has none
    version: int
    took_ms: int
    request: bytes  # without its length
    answer: bytes  # without its length

    @property
    def can_be_decoded(self) -> bool:
        return self.kind == "answer" and messages.is_known(self.api_key, self.version)


class Transcript(NamedTuple):
    """The course of one run. `stop_reason` says why the run stopped before the end of the conversation; else empty."""

    run: str
    digest: str
    began_ms: int
    ended_ms: int
    outcomes: tuple[Outcome, ...]
    failed_conditions: tuple[str, ...]  # conditions of the conversation that did not hold
    stop_reason: str
    variables: dict[str, Any]


class ConversationStopped(Exception):
    """The rest of the conversation cannot be run."""


class Connection:
    """One socket, its correlation ids, and the requests whose answers were not received yet."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, ANSWER_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending: list[tuple[int, int, int, int, bytes, float]] = []
        self.correlation_id = 0

    def send(self, frame: bytes, size: int | None = None) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the next read detects this
            self.socket.sendall(LENGTH.pack(len(frame) if size is None else size) + frame)

    def receive(self) -> tuple[str, bytes]:
        """Return ("answer", frame), ("closed", b"") or ("nothing", b"")."""
        try:
            length = self._exactly(LENGTH.size)
            if length is None:
                return "closed", b""
            (size,) = LENGTH.unpack(length)
            if not 0 <= size <= FRAME_BYTES_MAX:
                raise ConversationStopped(f"an answer of {size} bytes")
            frame = self._exactly(size)
        except TimeoutError:
            return "nothing", b""
        except ConnectionResetError:
            return "closed", b""
        return ("closed", b"") if frame is None else ("answer", frame)

    def _exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                return None
            data += piece
        return bytes(data)

    def close(self) -> None:
        self.socket.close()


class ConversationRunner:
    """Runs one conversation once."""

    def __init__(self, run: Run, addresses: Sequence[tuple[str, int]], kill: Callable[[int], None], salt: str) -> None:
        """`addresses` are those of the brokers 1, 2, .. of the cluster. `kill` ends the process of one of them."""
        self.run = run
        self.addresses = addresses
        self.kill = kill
        self.connections: dict[str, Connection] = {}
        self.variables: dict[str, Any] = {"run": run.name + salt, "host": addresses[0][0], "port": addresses[0][1]}
        self.outcomes: list[Outcome] = []
        self.failed_conditions: list[str] = []

    def execute(self) -> Transcript:
        """Execute the steps. Raises BadText if the conversation itself is wrong."""
        began_ms = time.time_ns() // 1_000_000
        stop_reason = ""
        try:
            for index, step in enumerate(self.run.conversation.steps):
                self._execute_step(index, step)
        except (ConversationStopped, OSError, messages.Undecodable) as error:
            stop_reason = f"line {step.line}: {error}"
        finally:
            for connection in self.connections.values():
                connection.close()
        ended_ms = time.time_ns() // 1_000_000
        return Transcript(
            self.run.name,
            self.run.conversation.digest,
            began_ms,
            ended_ms,
            tuple(self.outcomes),
            tuple(self.failed_conditions),
            stop_reason,
            self.variables,
        )

    def _execute_step(self, index: int, step: Step) -> None:
        if step.mode == "close":
            if step.connection in self.connections:
                self.connections.pop(step.connection).close()
        elif step.mode == "kill":
            self.kill(evaluate(step.node, self.variables, BUILDERS))
        elif step.mode == "receive":
            self._store_outcome(step, self._receive(step.connection))
        elif step.mode == "frame":
            self._frame(index, step)
        else:
            self._call(index, step)

    def _call(self, index: int, step: Step) -> None:
        assert step.api is not None
        api_key, version = messages.API_KEYS[step.api], self.run.version_of(step)
        deadline = time.monotonic() + UNTIL_TIMEOUT_S
        self._send_before(step, api_key, version)
        while True:
            connection = self._connection(step)
            connection.correlation_id += 1
            tree = evaluate(step.fields, self.variables, BUILDERS)
            client_id = evaluate(step.client_id, self.variables, BUILDERS)
            frame = messages.encode_request(api_key, version, connection.correlation_id, client_id, tree)
            sent = time.monotonic()  # before the bytes: the answer may be under way when `send` returns
            connection.send(frame)
            if step.mode == "silent":
                self.outcomes.append(Outcome(index, "silent", api_key, version, 0, frame, b""))
                return
            connection.pending.append((index, api_key, version, connection.correlation_id, frame, sent))
            if step.mode == "send":
                return
            outcome = self._receive(step.connection)
            if not step.until or outcome.kind != "answer":
                break
            answer = messages.decode_answer(api_key, version, outcome.answer)
            unmet = [c for c in step.until if not self._holds(c, answer)]
            if not unmet:
                break
            if time.monotonic() > deadline:
                self.outcomes.append(outcome)
                raise ConversationStopped(
                    f"still unmet: {unmet[0].path.text} is {values_text(answer, unmet[0].path, self.variables)}"
                )
            time.sleep(UNTIL_PAUSE_S)
        self._store_outcome(step, outcome)

    def _send_before(self, step: Step, api_key: int, version: int) -> None:
        """Send the request of the directive `times` all times but the last one, and drop the answers.

        Many requests are sent at once, since a conversation with tens of thousands of them would take too long.
        """
        remaining = step.times - 1
        while remaining > 0:
            connection = self._connection(step)
            count = min(remaining, PIPELINED)
            remaining -= count
            tree = evaluate(step.fields, self.variables, BUILDERS)
            client_id = evaluate(step.client_id, self.variables, BUILDERS)
            frame = messages.encode_request(api_key, version, 0, client_id, tree)
            connection.socket.sendall((LENGTH.pack(len(frame)) + frame) * count)
            for _ in range(count):
                kind, _ = connection.receive()
                if kind != "answer":
                    raise ConversationStopped(f"no answer to a request of many: {kind}")

    def _frame(self, index: int, step: Step) -> None:
        fields = evaluate(step.fields, self.variables, BUILDERS)
        connection = self._connection(step)
        connection.correlation_id += 1
        api_key, version, body = fields.get("api", -1), fields.get("version", 0), fields.get("body", b"")
        header_version = fields.get("header", 1)
        frame = body
        if header_version:
            frame = (
                messages.encode_header(api_key, version, connection.correlation_id, step.client_id, header_version)
                + body
            )
        sent = time.monotonic()
        connection.send(frame, fields.get("size"))
        connection.pending.append((index, api_key, version, connection.correlation_id, frame, sent))
        self._store_outcome(step, self._receive(step.connection))

    def _receive(self, name: str) -> Outcome:
        connection = self.connections.get(name)
        if connection is None:
            raise ConversationStopped("the connection was closed before")
        if not connection.pending:
            raise BadText(f"nothing was sent on connection {name}")
        index, api_key, version, correlation_id, frame, sent = connection.pending.pop(0)
        if self.run.conversation.steps[index].unanswered:
            connection.socket.settimeout(UNANSWERED_S)
        kind, answer = connection.receive()
        if kind != "answer":
            self.connections.pop(name).close()
        elif int.from_bytes(answer[:4], "big", signed=True) != correlation_id:
            raise ConversationStopped(f"correlation id {answer[:4].hex()} instead of {correlation_id}")
        return Outcome(index, kind, api_key, version, round((time.monotonic() - sent) * 1000), frame, answer)

    def _store_outcome(self, step: Step, outcome: Outcome) -> None:
        """Store the outcome, set variables from the answer, and check the conditions of the step."""
        self.outcomes.append(outcome)
        request_step = self.run.conversation.steps[outcome.step]
        if step.within_ms and not step.within_ms[0] <= outcome.took_ms <= step.within_ms[1]:
            self.failed_conditions.append(
                f"line {step.line}: took {outcome.took_ms} ms, not {step.within_ms[0]}..{step.within_ms[1]}"
            )
        if outcome.kind == "nothing" and not request_step.unanswered:
            raise ConversationStopped("no answer")
        if not outcome.can_be_decoded:
            if step.keep or request_step.keep:
                raise ConversationStopped(f"{outcome.kind}, but a variable needs the answer")
            return
        answer = messages.decode_answer(outcome.api_key, outcome.version, outcome.answer)
        for name, path in step.keep:
            found = find(answer, path, self.variables)
            if not found:
                raise ConversationStopped(f"the answer has no {path.text}")
            self.variables[name] = found[0]
        for condition in step.expect:
            if not self._holds(condition, answer):
                self.failed_conditions.append(
                    f"line {step.line}: {condition.path.text} is {values_text(answer, condition.path, self.variables)}"
                )

    def _holds(self, condition: Condition, answer: Tree) -> bool:
        found = find(answer, condition.path, self.variables)
        wanted = evaluate(condition.value, self.variables, BUILDERS)
        if isinstance(wanted, str) and wanted.isupper() and "error_code" in condition.path.text:
            wanted = messages.error_number(wanted)
        return bool(found) and all((value == wanted) is condition.equal for value in found)

    def _connection(self, step: Step) -> Connection:
        if step.connection not in self.connections:
            node = evaluate(step.node, self.variables, BUILDERS)
            if not 1 <= node <= len(self.addresses):
                raise ConversationStopped(f"there is no broker {node}")
            self.connections[step.connection] = Connection(self.addresses[node - 1])
        return self.connections[step.connection]


def find(tree: Tree, path: TreePath, variables: dict[str, Any]) -> list[Any]:
    """Return the values at a path: several if it has a "*", and none if the tree does not have the path."""
    values = [tree]
    for segment in path.segments:
        following: list[Any] = []
        for value in values:
            if segment == "*":
                following += value if isinstance(value, list) else []
            elif isinstance(segment, int):
                following += value[segment : segment + 1] if isinstance(value, list) else []
            elif isinstance(segment, tuple):
                wanted = evaluate(segment[1], variables, BUILDERS)
                following += [v for v in value or [] if v.get(segment[0]) == wanted][:1]
            elif isinstance(value, dict) and segment in value:
                following.append(value[segment])
        values = following
    return values


def values_text(tree: Tree, path: TreePath, variables: dict[str, Any]) -> str:
    found = find(tree, path, variables)
    if found and "error_code" in path.text:
        return ", ".join(messages.error_name(v) for v in found)
    return ", ".join(map(repr, found)) or "not there"


def kill_nothing(node: int) -> None:
    raise ConversationStopped(f"broker {node} cannot be killed: it was not started for the conversations")


def run_conversation(
    run: Run, *addresses: tuple[str, int], kill: Callable[[int], None] = kill_nothing, salt: str = ""
) -> Transcript:
    """Run one conversation with the broker at `addresses[0]`, or with a cluster.

    `salt` is a suffix for the names of its topics and groups.
    """
    return ConversationRunner(run, addresses, kill, salt).execute()
