"""`tidelog pipeline status` shows every pipeline beside one whose status file has any bytes or any texts."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_harness import ENCODINGS, tidelog
from cli_harness.names import check_table

EXAMPLES = int(os.environ.get("TIDELOG_EXAMPLES", "12"))
texts = st.text(max_size=12) | st.sampled_from(["a\0b", "\x1b[2J", "a\nb\r", "é漢😀", "\ud800", "\udcff", "running"])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just(10**400),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)
counts = st.integers(0, 10) | values
queries = st.fixed_dictionaries(
    {"sink": texts},
    optional=dict.fromkeys(("rows", "batches", "rows_per_s", "batch_ms", "lag_records", "lag_ms", "late_rows"), counts),
)
statuses = st.fixed_dictionaries(
    {"pipeline": texts, "state": st.sampled_from(["running", "failed", "waiting"]) | texts},
    optional={
        "restarts": counts,
        "error": texts | values,
        "restart_in_s": counts,
        "queries": st.lists(queries | values, max_size=2) | values,
        "unknown": values,
    },
)
files = st.binary(max_size=12) | (statuses | values).map(lambda document: json.dumps(document).encode())


@given(files, st.sampled_from(ENCODINGS))
@settings(max_examples=8 * EXAMPLES, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_one_odd_status_does_not_hide_the_others(data: bytes, encoding: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pipelines-é") as state:
        for name in ("odd", "sound"):
            Path(state, name).mkdir()
        Path(state, "odd", "status.json").write_bytes(data)
        sound = {"pipeline": "sound", "state": "done", "queries": [{"sink": "sound", "rows": 7}]}
        Path(state, "sound", "status.json").write_text(json.dumps(sound))
        ran = tidelog("pipeline", "status", "--state", state, encoding=encoding)
        check_table(ran)
        assert ran.text.splitlines()[-1].split()[:4:3] == ["sound", "7"]
        ran = tidelog("pipeline", "status", "--state", state, "--json", encoding=encoding)
        check_table(ran)
        odd, last = ran.json()
        assert (last["pipeline"], last["queries"][0]["rows"]) == ("sound", 7)
        assert ("problem" in odd) == (
            "the figures of pipeline odd cannot be shown: " in ran.errors
        ) or b"problem" in data
