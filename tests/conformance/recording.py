"""Read and write recorded conversations. Each conversation file has one gzip file with a line of JSON for each run.

The line has the raw bytes of requests and answers.
"""

import base64
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from .exchange import Outcome, Transcript

DIRECTORY = Path(__file__).parent / "recorded"


def path_of(file: str, directory: Path = DIRECTORY) -> Path:
    return directory / f"{file}.jsonl.gz"


def write(file: str, transcripts: Iterable[Transcript], directory: Path = DIRECTORY) -> None:
    """Replace the recording of a conversation file. The same transcripts result in the same bytes."""
    lines = "".join(json.dumps(_to_json(t), separators=(",", ":")) + "\n" for t in transcripts)
    path_of(file, directory).write_bytes(gzip.compress(lines.encode(), mtime=0))


def read(file: str, directory: Path = DIRECTORY) -> dict[str, Transcript]:
    """Return run name -> transcript. Empty if the file has no recording."""
    path = path_of(file, directory)
    if not path.exists():
        return {}
    return {t.run: t for t in _lines(path)}


def _lines(path: Path) -> Iterator[Transcript]:
    with gzip.open(path, "rt") as lines:
        for line in lines:
            yield _from_json(json.loads(line))


def _to_json(transcript: Transcript) -> dict[str, object]:
    return {
        "run": transcript.run,
        "digest": transcript.digest,
        "began_ms": transcript.began_ms,
        "ended_ms": transcript.ended_ms,
        "outcomes": [
            [o.step, o.kind, o.api_key, o.version, o.took_ms, _text(o.request), _text(o.answer)]
            for o in transcript.outcomes
        ],
        "variables": {k: v for k, v in transcript.variables.items() if isinstance(v, str | int)},
    }


def _from_json(line: dict[str, object]) -> Transcript:
    outcomes = line["outcomes"]
    variables = line["variables"]
    assert isinstance(outcomes, list)
    assert isinstance(variables, dict)
    return Transcript(
        str(line["run"]),
        str(line["digest"]),
        int(str(line["began_ms"])),
        int(str(line["ended_ms"])),
        tuple(_outcome(*o) for o in outcomes),
        (),
        "",
        variables,
    )


def _outcome(step: int, kind: str, api_key: int, version: int, took_ms: int, request: str, answer: str) -> Outcome:
    return Outcome(step, kind, api_key, version, took_ms, base64.b64decode(request), base64.b64decode(answer))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
