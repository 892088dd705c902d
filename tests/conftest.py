"""Makes the packages beside it importable from every test, and prints what suites say of themselves."""

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

from process_harness import NOTES

if TYPE_CHECKING:
    import pytest

# How fast an example is on a busy machine is not what these tests are about.
settings.register_profile("tidelog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidelog")


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Seeds, amounts and times, one `note: ` line each: the runner takes them into its report."""
    for line in NOTES:
        terminalreporter.write_line(f"note: {line}")
