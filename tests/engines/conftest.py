import subprocess
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.engines.conformance", "tests.engines.driving")

from tests.conftest import Ran, Trimtab  # noqa: E402 - what is rewritten must be imported after it is registered
from tests.engines.driving import TWO_RANKS  # noqa: E402 - as above


@pytest.fixture(scope="session")
def alone(trimtab: Trimtab) -> Ran:
    """The tiny job on one rank under the local engine: what every engine must come to."""
    return trimtab("run", "tiny.yaml", "--json", *TWO_RANKS, "--set", "orchestration.devices=1")


@pytest.fixture
def sibling() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has nothing to do with any run."""
    process = subprocess.Popen(["/bin/sleep", "120"])
    yield process
    process.kill()
    process.wait()
