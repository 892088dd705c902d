"""The recording: it is complete, and kio decodes and encodes all of its bytes without a change."""

from pathlib import Path

import pytest

from . import messages, recording
from .command import CONVERSATIONS
from .conversation import ADVERTISED, Run, load_all, runs_of
from .exchange import Outcome, Transcript

RUNS: dict[str, list[Run]] = {}
for _conversation in load_all(CONVERSATIONS):
    RUNS.setdefault(_conversation.file, []).extend(runs_of(_conversation))


def runs_with_transcripts(file: str) -> list[tuple[Run, Transcript]]:
    transcripts = recording.read(file)
    return [(run, transcripts[run.name]) for run in RUNS[file]]


@pytest.mark.parametrize("file", RUNS)
def test_a_recording_is_of_the_conversations_that_there_are(file: str) -> None:
    transcripts = recording.read(file)
    assert list(transcripts) == [run.name for run in RUNS[file]]
    assert [r.name for r in RUNS[file] if transcripts[r.name].digest != r.conversation.digest] == []


def test_each_api_is_recorded_in_each_version() -> None:
    seen: set[tuple[int, int]] = set()
    for file in RUNS:
        seen |= {
            (o.api_key, o.version) for _, t in runs_with_transcripts(file) for o in t.outcomes if o.kind == "answer"
        }
    missing = [
        (api, version)
        for api, (first, last) in ADVERTISED.items()
        for version in range(first, last + 1)
        if (messages.API_KEYS[api], version) not in seen
    ]
    assert missing == []


@pytest.mark.parametrize("file", RUNS)
def test_kio_reads_and_writes_the_recorded_bytes(file: str) -> None:
    for run, transcript in runs_with_transcripts(file):
        for outcome in transcript.outcomes:
            if run.conversation.steps[outcome.step].is_described:
                key, version, tree = messages.decode_request(outcome.request)
                correlation_id, client_id = header_of(outcome.request)
                assert messages.encode_request(key, version, correlation_id, client_id, tree) == outcome.request
            if outcome.can_be_decoded:
                correlation_id = int.from_bytes(outcome.answer[:4], "big")
                answer = messages.decode_answer(outcome.api_key, outcome.version, outcome.answer)
                assert (
                    messages.encode_answer(outcome.api_key, outcome.version, correlation_id, answer) == outcome.answer
                )


def header_of(frame: bytes) -> tuple[int, str]:
    _, _, correlation_id, length = messages.REQUEST_HEADER.unpack_from(frame)
    return correlation_id, frame[messages.REQUEST_HEADER.size :][:length].decode()


def test_written_and_read_it_is_the_same(tmp_path: Path) -> None:
    outcome = Outcome(0, "answer", 18, 0, 3, b"asked", b"told")
    transcript = Transcript("run", "digest", 1, 2, (outcome,), (), "", {"run": "run", "t": "x"})
    recording.write("file", [transcript], tmp_path)
    first = (tmp_path / "file.jsonl.gz").read_bytes()
    assert recording.read("file", tmp_path) == {"run": transcript}
    recording.write("file", [transcript], tmp_path)
    assert (tmp_path / "file.jsonl.gz").read_bytes() == first
    assert recording.read("nothing", tmp_path) == {}
