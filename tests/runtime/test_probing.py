"""Flipped bits among replicas, by the hundred: each that matters is found, and nothing else is."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.runtime.stored.crews import Unwatched, job_of, load_of, model_of
from trimtab.runtime.assembly import build_job_optimizer
from trimtab.runtime.errors import CorruptionError
from trimtab.runtime.faults import Faults
from trimtab.runtime.flat_state import FlatState
from trimtab.runtime.job_rules import step_rules
from trimtab.runtime.probing import ProbeRules
from trimtab.runtime.process_groups import Group, Interrupt, Rendezvous, connect_store
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.step import Requests, StepRunner
from trimtab.spec import FaultKind, Injection

RANKS = 3
_BUILDING = threading.Lock()


class Lived:
    """What one rank has seen: norms by step, and who was accused in which step."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.accused: dict[int, int | None] = {}
        self.weights = torch.empty(0)


def lives(folder: Path, *, steps: int, probe: ProbeRules, flips: Sequence[Injection] = ()) -> list[Lived]:
    """Three replicas in threads; a step in which somebody is accused is done again by all, gradients forgotten."""
    job = job_of("Tied", devices=RANKS)
    rendezvous = Rendezvous()
    all_built = threading.Barrier(RANKS)
    folder.mkdir()

    def life(rank: int) -> Lived:
        group = Group(
            members=tuple(range(RANKS)),
            rank=rank,
            epoch=1,
            store=connect_store("127.0.0.1", rendezvous.port),
            kind="cpu",
            interrupt=Interrupt(),
        )
        with _BUILDING:
            model = model_of(job)
            state = FlatState(model.logical_parameters())
            runner = StepRunner(
                rules=replace(step_rules(job), probe=probe, balance_every=0),
                model=model,
                state=state,
                optimizer=build_job_optimizer(job, state),
                keyed=KeyedRandom(),
                load=load_of(job),
                learning_rate=lambda step: 1e-3,
                recorder=Recorder(folder, rank=rank, incarnation=0),
                faults=Faults(flips, rank=rank, folder=folder, announce=lambda fields: None),
                watch=Unwatched(),  # type: ignore[arg-type]  # it answers to every name
            )
        runner.enter(group, step=0, owners=())
        all_built.wait()
        lived = Lived()
        for step in range(steps):
            try:
                result = runner.run(step, Requests())
            except CorruptionError as error:
                lived.accused[step] = error.verdict.liar
                runner.forget()
                result = runner.run(step, Requests())
            assert result.grad_norm is not None
            lived.norms.append(result.grad_norm)
        lived.weights = state.parameters
        runner.leave()
        return lived

    torch.set_num_threads(1)
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(life, range(RANKS)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_flips_are_found_where_they_matter_and_five_hundred_steps_raise_no_alarm(
    tmp_path: Path,
) -> None:
    """S-FT-17: a false alarm costs a healthy rank, and a flip that is missed is blamed on the data.

    Without regular probes: what finds them is the gradient norm, in the step itself.
    """
    calm = lives(tmp_path / "calm", steps=500, probe=ProbeRules(rate=0.1, compare_every=10))
    assert [lived.accused for lived in calm] == [{}] * RANKS
    chance = random.Random(17)
    flips = [
        Injection(
            kind=FaultKind.BIT_FLIP,
            rank=chance.randrange(RANKS),
            step=20 + 10 * number,
            bit=30 if number % 2 else chance.randrange(20, 30),
            element=chance.randrange(100_000),
        )
        for number in range(20)
    ]
    found = lives(tmp_path / "flips", steps=230, probe=ProbeRules(rate=1e-12, compare_every=0), flips=flips)
    for lived in found:
        assert lived.accused == found[0].accused, "all ranks must come to one verdict"
        assert torch.equal(lived.weights, found[0].weights)
    liars = {flip.step: flip.rank for flip in flips}
    assert found[0].accused.items() <= liars.items(), "nobody but who lied was accused"
    assert len(found[0].accused) >= 10, "the highest bit of the exponent makes 10^36 of any gradient"
    for step in liars.keys() - found[0].accused.keys():
        ratio = found[0].norms[step] / calm[0].norms[step]
        assert 0.1 < ratio < 10, "what was not found changed the norm by less than ten times"
