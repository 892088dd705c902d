"""The line that shows how far `tidelog produce` is."""

import pytest

from tidelog.cli.produce import Writer


def test_records_that_failed_do_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer.__new__(Writer)
    writer.started_s = writer.progress_shown_s = float("-inf")
    writer.read_records, writer.written_records, writer.failed = 10, 5, {"too large": 2, "timed out": 1}
    writer.show_progress()
    assert "5 records written, 2 waiting" in capsys.readouterr().err
