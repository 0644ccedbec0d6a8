"""Plugin of pytest that records which lines of the package every test executes.

`lines.sqlite` (data of coverage, a context per test) and `tests.json` (per test: seconds, whether
it passed, its fixtures) go to the folder LINES_OF_TESTS. A fixture that tests share is a context of
its own, else the first of them would have its lines alone.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage


class Recorder:
    def __init__(self, folder: Path) -> None:
        self.folder, self.tests, self.running = folder, {}, ""
        source = [str(Path.cwd() / "skipbench")]
        self.coverage = Coverage(folder / "lines.sqlite", source=source, config_file=False)
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.running = item.nodeid
        self.tests[item.nodeid] = {"seconds": 0.0, "passed": True, "fixtures": item.fixturenames}
        self.coverage.switch_context(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        shared = fixturedef.scope != "function"
        self.coverage.switch_context(fixturedef.argname if shared else self.running)
        try:
            return (yield)
        finally:
            self.coverage.switch_context(self.running)

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = self.tests[report.nodeid]
        test["seconds"] += report.duration
        test["passed"] &= report.passed  # a skipped test has not passed

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        (self.folder / "tests.json").write_text(json.dumps(self.tests))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(Path(os.environ["LINES_OF_TESTS"])))
