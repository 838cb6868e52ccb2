"""A pytest plugin that writes the seconds of each test to a file of JSON lines.

    TEST_TIMES=times.jsonl PYTHONPATH=benchmarks/suite pytest -p test_times ...

Each line has the test's file, its name, its wall-clock seconds, and the processor seconds of this process and of the
child processes that it waited for. Fixtures count for the test that sets them up or tears them down.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator

import pytest


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    wall, processor = time.perf_counter(), _processor_seconds()
    result = yield
    row = {
        "file": str(item.path.relative_to(item.config.rootpath)),
        "test": item.name,
        "wall_s": round(time.perf_counter() - wall, 3),
        "processor_s": round(_processor_seconds() - processor, 3),
    }
    # one write per line, appended: workers of xdist share the file
    with open(os.environ["TEST_TIMES"], "ab", buffering=0) as file:
        file.write((json.dumps(row) + "\n").encode())
    return result
