"""What other programs were found to do is said in numbers, after the tests."""

import pytest


@pytest.fixture
def figure(record_property):
    """Say a line in the summary, from any worker."""
    return lambda line: record_property("figure", line)


def pytest_terminal_summary(terminalreporter):
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
    ]
    for report in reports:
        for name, line in report.user_properties:
            if name == "figure":
                terminalreporter.write_line(line)
