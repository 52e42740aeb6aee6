"""The space of layouts: what is in it, what is not, and that the compiler takes every one."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from trimtab.catalog import THIS_MACHINE, Machine, cluster
from trimtab.cost.closed_form import MEMORY_CONSTANTS, expected, peak_memory
from trimtab.cost.counts import counts_of
from trimtab.cost.search import Layout, Question, SpaceError, fabric_of, plan_of, priced_cases
from trimtab.cost.search.space import columns_of, layout_at, layouts
from trimtab.plan.pipelines import StageSchedule

QuestionMaker = Callable[..., Question]

ASKED = [
    {"network": "llama2-7b", "devices": (8,), "batch": 64},
    {"network": "gpt3-175b", "devices": (64,), "batch": 96, "sequence": 2048},
    {"network": "mixtral-8x7b", "devices": (16, 32), "batch": 64},
    {"network": "llama3-405b", "cluster": "512xH100", "devices": (512,), "batch": 256, "sequence": 8192},
    {"network": "llama2-7b", "devices": (8,), "batch": 64, "shares": 8},
]


def some(question: Question, count: int, seed: int = 0) -> Iterator[Layout]:
    """A few of all, at random."""
    generator = random.Random(seed)
    chunks = list(layouts(question))
    for _ in range(count):
        columns = generator.choice(chunks)
        yield layout_at(columns, generator.randrange(len(columns["devices"])))


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked['network']}-{asked.get('shares', 'off')}")
def test_every_layout_compiles_and_keeps_what_is_said(
    question: QuestionMaker, asked: dict[str, object]
) -> None:
    """What is kept between steps is exact but for norms, biases and positions, which closed forms leave out: 2 % of GPT."""
    found = question(**asked)
    for layout in some(found, 8):
        where = cluster(str(asked.get("cluster", "64xA100")))
        plan = plan_of(found, layout, where, shares=found.shares or layout.data)
        assert plan.mesh.num_devices == layout.devices
        counts = counts_of(plan)
        kept = max(
            sum(table.total_bytes for table in counts.holdings.of(group.stages)) for group in counts.groups
        )
        said = peak_memory(priced_cases(found, layout), {**expected(MEMORY_CONSTANTS), "state": np.ones(())})
        assert float(np.ravel(said.state_bytes)[0]) == pytest.approx(kept, rel=0.03), layout


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked['network']}-{asked.get('shares', 'off')}")
def test_no_layout_is_there_twice_and_all_divide(question: QuestionMaker, asked: dict[str, object]) -> None:
    found = question(**asked)
    seen = 0
    for columns in layouts(found):
        seen += len(columns["devices"])
        degrees = columns["tensor"] * columns["pipeline"] * columns["context"]
        assert not np.any(columns["devices"] % degrees)
        data = columns["devices"] // degrees
        assert not np.any(found.batch % (data * columns["microbatch"]))
        assert not np.any(data % columns["expert"])
        assert not np.any(found.network.kv_heads % columns["tensor"])
        if found.shares:
            assert not np.any(found.shares % data)
    rows = {
        tuple(row)
        for columns in layouts(found)
        for row in np.stack([columns[name] for name in sorted(columns)], axis=1).tolist()
    }
    assert len(rows) == seen > 100


def test_what_is_known_to_be_good_is_in_the_space(question: QuestionMaker) -> None:
    """GPT-3 as Megatron trained it on 1,024 devices, here on half as many: tp 8, pp 16 interleaved, microbatch 1."""
    found = question(network="gpt3-175b", cluster="512xH100", devices=(512,), batch=1536, sequence=2048)
    wanted = Layout(
        devices=512, tensor=8, pipeline=16, schedule=StageSchedule.INTERLEAVED_1F1B, pieces=3, store=1,
        recompute_quarters=4, sequence_parallel=True,
    )  # fmt: skip
    key = columns_of(wanted)
    assert any(
        np.any(np.all([columns[name] == key[name][0] for name in columns], axis=0))
        for columns in layouts(found)
    )


def test_devices_without_rates_are_refused() -> None:
    machine = cluster(THIS_MACHINE, machine=Machine(num_devices=2, cores=2, memory_bytes=2**33))
    with pytest.raises(SpaceError, match="cannot be priced: the rate of CPU in fp32"):
        fabric_of(machine, "fp32")


def test_more_devices_than_there_are_are_refused(question: QuestionMaker) -> None:
    with pytest.raises(SpaceError, match="devices 128: the cluster has 64"):
        question(devices=(128,))
