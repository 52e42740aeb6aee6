from pathlib import Path

import pytest

from trimtab.app.cli import run_cli

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("verb", [("explain",), ("run", "--dry-run")], ids=lambda verb: verb[0])
def test_every_example_is_accepted_as_it_stands(path, verb, capsys):
    """The first thing that a user tries must work, without a warning."""
    assert run_cli([*verb, str(path)]) == 0
    assert capsys.readouterr().err == ""


def test_there_are_examples():
    """An empty folder would pass the test above."""
    assert (EXAMPLES / "quickstart.yaml").exists()
