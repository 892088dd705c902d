"""`tidelog cluster upgrade` with levels that a broker reports."""

from typing import Any

import pytest

from tidelog.cli import cluster_features
from tidelog.cli.cluster_features import FeatureLevel, upgrade

GROUPS = FeatureLevel("group.version", 1, 1)


@pytest.mark.parametrize(
    ("levels", "text"),
    [
        ([GROUPS], "This broker is alone: it does not share its metadata store"),
        ([GROUPS, FeatureLevel("tidelog.metadata.version", 1, 1)], "All levels are the newest."),
        ([GROUPS, FeatureLevel("metadata.version", 29, 29)], "All levels are the newest."),
        ([GROUPS, FeatureLevel("tidelog.metadata.version", 0, 1)], "--execute finalizes the newest levels."),
    ],
)
def test_the_last_line_says_what_can_be_done(
    levels: list[FeatureLevel], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client: Any = None
    monkeypatch.setattr(cluster_features, "read_levels", lambda _: levels)
    assert upgrade(client, execute=False, json=False) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(text)
