"""The Java classes that take the place of those that start brokers."""

from __future__ import annotations

import re
from importlib.util import find_spec

from peers.suites.servers import JAVA

STARTED = re.compile(r'new OurBroker\("([\w.]+)"')


def test_the_modules_that_they_start_can_be_started() -> None:
    modules = {name for source in JAVA.rglob("*.java") for name in STARTED.findall(source.read_text())}
    assert len(modules) == 2
    for module in modules:
        spec = find_spec(module)
        assert spec is not None, module
        assert spec.submodule_search_locations is None or find_spec(f"{module}.__main__"), module
