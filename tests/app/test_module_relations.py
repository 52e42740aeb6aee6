"""A job that trains a class of the user's own, asked in SQL: torch is loaded for it, and for it alone."""

from pathlib import Path
from typing import Any

import pytest

CLASS = '''
from torch import nn


class Small(nn.Module):
    """Two matrices; the second is annotated."""

    dims = {"out.weight": ("vocab", "embed")}

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.out = nn.Linear(width, 256, bias=False)

    def forward(self, tokens):
        return self.out(self.embedding(tokens))
'''
JOB = """\
run: own
model: {module: "small_model:Small", args: {width: 16}}
data: {text: python-stdlib, sequence: 32}
train: {steps: 4, batch: 4}
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the class and its job."""
    (tmp_path / "small_model.py").write_text(CLASS, encoding="utf-8")
    (tmp_path / "own.yaml").write_text(JOB, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_class_has_tables(cli: Any, desk: Path) -> None:
    """Who writes WHERE for a class of their own tries the condition out here first."""
    assert desk.is_dir()
    asked = cli(
        "query",
        "own.yaml",
        "SELECT name, dims, shape, dims_known_by FROM params ORDER BY name",
        "--format",
        "csv",
    )
    assert asked.out.splitlines() == [
        "name,dims,shape,dims_known_by",
        'embedding.weight,"vocab,embed","256,16",inferred',
        'out.weight,"vocab,embed","256,16",annotated',
    ]


def test_tables_of_a_plan_are_refused_with_the_reason(cli: Any, desk: Path) -> None:
    """A class has no plan: an empty table would say that nothing is sent."""
    assert desk.is_dir()
    refused = cli("query", "own.yaml", "SELECT * FROM collectives")
    assert refused.code == 2
    assert "its tensors are known, its operators are not" in refused.err
