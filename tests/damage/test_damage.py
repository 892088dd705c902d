"""Damaged files: the broker starts or says in one line why not; what it serves is right, the rest is named."""

import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from process_harness import amount, note, seed_of, timed
from process_harness.child import address_of, start
from process_harness.raw import RawConnection, WrongChecksum
from tidelog.testing import Broker
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

CASES = amount(30, 300)
TOPICS = {"orders": 2, "events": 1}
GROUP = "billing"
ROUNDS = 60
VALUE_BYTES = 40_000
BASE_OFFSET_BYTES = 8
WHOLE = ("metadata.sqlite", "metadata.sqlite-wal", "meta.properties")
"""Without these nobody knows what there should be: the broker may refuse to start, and says which it is."""
SMALL_SEGMENTS = {"log.segment.bytes": 1 << 20, "offsets.topic.num.partitions": 1}


class Image(NamedTuple):
    """A data directory as a broker left it, and what is in it."""

    path: Path
    values: dict[tuple[str, int], list[bytes]]


class Damage(NamedTuple):
    path: Path
    what: str
    position: int


@pytest.fixture(scope="module", params=["stopped", "killed"])
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Image:
    path = tmp_path_factory.mktemp(request.param) / "data"
    values: dict[tuple[str, int], list[bytes]] = {(t, p): [] for t, count in TOPICS.items() for p in range(count)}
    broker = Broker(process=True, data=path, settings=SMALL_SEGMENTS)
    broker.start()
    with RawConnection((broker.host, broker.port)) as client:
        for topic, count in TOPICS.items():
            client.create_topic(topic, count)
        write(client, values, random.Random(1))
        commit(client)
    broker.stop()
    if request.param == "killed":
        # The second half was never synced: it lies past the recovery point.
        settings = SMALL_SEGMENTS | {"durability.interval.ms": 3_600_000}
        broker = Broker(process=True, data=path, settings=settings)
        broker.start()
        with RawConnection((broker.host, broker.port)) as client:
            write(client, values, random.Random(2))
        broker.kill()
    return Image(path, values)


def write(client: RawConnection, values: dict[tuple[str, int], list[bytes]], rng: random.Random) -> None:
    for _ in range(ROUNDS):
        for (topic, partition), known in values.items():
            batch = [rng.randbytes(rng.choice((10, 1000, VALUE_BYTES))) for _ in range(rng.choice((1, 2, 3)))]
            assert client.produce(topic, partition, batch).base_offset == len(known)
            known += batch


def commit(client: RawConnection) -> None:
    answer = None
    while answer is None or answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
        found = client.ask(FindCoordinatorRequest(key=GROUP), 3)
        assert isinstance(found, FindCoordinatorResponse)
        answer = found
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    request = OffsetCommitRequest(group_id=GROUP, topics=[OffsetCommitRequestTopic(name="orders", partitions=[part])])
    code = -1
    while code != ErrorCode.NONE:
        committed = client.ask(request, 8)
        assert isinstance(committed, OffsetCommitResponse)
        code = committed.topics[0].partitions[0].error_code
        assert code in (ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


def damage(data: Path, rng: random.Random) -> Damage:
    """Damage one file, as disks and people do. Each kind of file gets its share."""
    files = [
        path for path in sorted(data.rglob("*")) if path.is_file() and path.name != ".lock" and path.stat().st_size
    ]
    kinds = sorted({path.suffix or path.name for path in files})
    kind = rng.choice([*kinds, ".log", ".log"])
    path = rng.choice([path for path in files if (path.suffix or path.name) == kind])
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    what = rng.choice(("flip", "flip", "zeros", "cut", "double", "garbage", "gone"))
    match what:
        case "flip":
            content[at] ^= 1 << rng.randrange(8)
        case "zeros":
            end = min(at + rng.choice((1, 16, 512, 4096)), len(content))
            content[at:end] = bytes(end - at)
        case "cut":
            del content[at:]
        case "double":
            content[at:at] = content[at : at + rng.choice((8, 61, 512, 4096))]
        case "garbage":
            content += rng.randbytes(rng.choice((1, 61, 5000)))
            at = len(content)
    if content == path.read_bytes():  # zeros where zeros were
        content[at] ^= 1
    if what == "gone":
        path.unlink()
    else:
        path.write_bytes(content)
    return Damage(path, what, at)


def read_damaged(client: RawConnection, topic: str, partition: int, expected: list[bytes]) -> str:
    """How a partition with a damaged file is served: whole, up to the damage, or not at all; never wrongly."""
    served = 0
    while True:
        try:
            code, records = client.fetch(topic, partition, served)
        except WrongChecksum:
            # A byte inside a sealed batch: consumers check the CRC, as they do with Kafka.
            return "checksum"
        if code == ErrorCode.KAFKA_STORAGE_ERROR:
            return "offline"
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and not served:
            return "without its beginning"
        assert code == ErrorCode.NONE, ErrorCode(code)
        if not records:
            return "whole" if served == len(expected) else f"cut at {served}"
        for record in records:
            assert record.offset == served, "a broken chain"
            assert record.value == expected[served], "a wrong record"
            served += 1


def check_served(client: RawConnection, image: Image, hurt: str, log: str) -> str:
    """Every partition but the hurt one (a directory's name) is whole; the hurt one is right or named."""
    outcome = "whole"
    for (topic, partition), expected in image.values.items():
        if f"{topic}-{partition}" != hurt:
            assert client.read_all(topic, partition) == (ErrorCode.NONE, expected), f"{topic}-{partition}"
        else:
            outcome = read_damaged(client, topic, partition, expected)
    return outcome


def run_case(image: Image, case: int, seed: int, work: Path) -> tuple[Damage, str]:
    rng = random.Random(f"{seed} {case}")
    data = work / "data"
    shutil.copytree(image.path, data)
    done = damage(data, rng)
    hurt = done.path.parent.name if done.path.parent != data else ""
    with (work / "log").open("wb") as output:
        broker = start(data, output, *(f for k, v in SMALL_SEGMENTS.items() for f in ("--set", f"{k}={v}")))
        try:
            assert broker.stdout is not None
            if not hurt and done.path.name in WHOLE and not broker.stdout.peek(1):  # type: ignore[attr-defined]
                assert broker.wait(30) == 1
                said = (work / "log").read_text().splitlines()[-1]
                assert re.match(r"Error: .*(metadata|meta\.properties)", said), said
                return done, "refused"
            with RawConnection(address_of(broker)) as client:
                outcome = check_served(client, image, hurt, "")
            broker.terminate()
            assert broker.wait(30) == 0
        finally:
            broker.kill()
            broker.communicate()
    log = (work / "log").read_text()
    assert "request failed" not in log, log
    assert "internal error" not in log, log
    if outcome == "offline":
        assert re.search(rf"offline.*{hurt}", log), log
    if outcome.startswith(("cut", "without")):
        assert re.search(rf"(torn tail cut off|orphaned index removed|segment dropped|renamed) path=\S*{hurt}", log), (
            log
        )
    return done, outcome


def verify_names(image: Image, case: int, seed: int, work: Path) -> tuple[Damage, bool]:
    """Whether `log verify` names the damaged file."""
    data = work / "data"
    shutil.copytree(image.path, data)
    done = damage(data, random.Random(f"{seed} {case}"))
    command = [sys.executable, "-m", "tidelog", "log", "verify", str(data)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env={"COLUMNS": "400"})
    assert result.returncode in (0, 1), result.stderr
    assert "Traceback" not in result.stderr
    if done.what == "gone":  # its index may tell of it; what never had one cannot be missed
        return done, done.path.stem in result.stdout
    # No checksum covers a batch's base offset. Of a log of one batch, nothing but its index tells that it is wrong.
    name = done.path.stem if done.path.suffix == ".log" and done.position < BASE_OFFSET_BYTES else done.path.name
    return done, result.returncode == 1 and name in result.stdout


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.timeout(amount(300, 3600))
def test_damaged_files(image: Image, work: Path) -> None:
    seed = seed_of(f"damaged files, {image.path.parent.name}")
    outcomes: Counter[str] = Counter()
    unnamed: Counter[str] = Counter()
    with timed(f"damaged files: {CASES} cases"):
        for case in range(CASES):
            place = work / str(case)
            place.mkdir()
            try:
                done, outcome = run_case(image, case, seed, place)
                shutil.rmtree(place / "data")
                _, named = verify_names(image, case, seed, place)
            except BaseException as error:
                done = damage_again(image, case, seed, place)
                error.add_note(f"seed {seed} case {case}: {done.what} at {done.position} of {done.path}")
                raise
            shutil.rmtree(place)
            outcomes[re.sub(r" at \d+", "", outcome)] += 1
            if not named and done.path.suffix == ".log":
                unnamed[f"{done.what}"] += 1
                print(f"case {case}: verify does not name {done}")
    note(f"damaged files: {', '.join(f'{count} {what}' for what, count in sorted(outcomes.items()))}")
    # A tail that was cut where a batch ends is no damage that the file itself shows.
    assert set(unnamed) <= {"cut"}, unnamed


def damage_again(image: Image, case: int, seed: int, place: Path) -> Damage:
    """What a case did, for the report of its failure."""
    again = place / "again"
    shutil.copytree(image.path, again)
    return damage(again, random.Random(f"{seed} {case}"))
