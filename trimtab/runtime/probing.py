"""Finds ranks that compute wrong numbers: shares are computed again on other ranks, replicas are compared bit by bit.

All ranks of an epoch call it in the same places with the same values, for they know the owners of all shares; each
knows from one small sum what all have found.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.policy.probing import Probe, Verdict, differing_replicas, judge, plan_probes, probed_shares
from trimtab.runtime.asking import Asking
from trimtab.runtime.bit_digests import bit_digest
from trimtab.runtime.errors import CorruptionError
from trimtab.runtime.process_groups import Group
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.watch import Watch
from trimtab.terms import Clock


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeRules:
    """Constants of the run.

    Args:
        rate: Part of the shares that are computed twice.
        compare_every: Steps between two comparisons of the replicas' parameters; 0: never.
    """

    rate: float = 0.0
    compare_every: int = 0


class Prober:
    """Probes the shares of one rank and its peers. Time that it takes stands on the clock ``probe``.

    Args:
        compute: Computes a share of a step into a vector, which is given back by ``release``.
        num_elements: Of that vector, those that are gradients, loss and count; what follows is not compared.
    """

    def __init__(
        self,
        rules: ProbeRules,
        *,
        seed: int,
        num_shares: int,
        num_elements: int,
        compute: Callable[[int, int], Asking[Tensor]],
        release: Callable[[Tensor], None],
        recorder: Recorder,
        watch: Watch,
    ) -> None:
        self._rules, self._seed, self._num_shares = rules, seed, num_shares
        self._num_elements, self._compute, self._release = num_elements, compute, release
        self._recorder, self._watch = recorder, watch

    @property
    def is_on(self) -> bool:
        """Whether shares are probed."""
        return self._rules.rate > 0

    def probe_some(
        self, step: int, owners: Sequence[int], leaves: Mapping[int, Tensor], group: Group
    ) -> Asking[None]:
        """Probe the shares of a step whose turn it is.

        Raises: CorruptionError on all ranks if one has computed other bits than others.
        """
        shares = probed_shares(seed=self._seed, step=step, num_shares=self._num_shares, rate=self._rules.rate)
        yield from self._probe(step, shares, owners, leaves, group, reason="rate")

    def probe_all(
        self, step: int, owners: Sequence[int], leaves: Mapping[int, Tensor], group: Group, *, reason: str
    ) -> Asking[None]:
        """Probe every share of a step, because something about it is odd. Raises as ``probe_some``."""
        yield from self._probe(step, range(self._num_shares), owners, leaves, group, reason=reason)

    def compare(self, step: int, parameters: Tensor, group: Group) -> None:
        """Compare the parameters of all replicas, if it is time.

        Raises: CorruptionError on all ranks if they differ.
        """
        every = self._rules.compare_every
        if not every or step % every or group.size == 1:
            return
        with self._recorder.within(Clock.PROBE):
            word = torch.zeros(group.size, dtype=torch.int64)
            word[group.members.index(group.rank)] = bit_digest(parameters)
            said = self._told(word, group)
        verdict = differing_replicas(dict(zip(group.members, said, strict=True)))
        if group.rank == group.members[0]:
            self._recorder.event("compared", step=step, is_equal=verdict is None)
        if verdict is not None:
            raise CorruptionError(verdict, step=step, is_state=True)

    def _probe(
        self,
        step: int,
        shares: Sequence[int],
        owners: Sequence[int],
        leaves: Mapping[int, Tensor],
        group: Group,
        *,
        reason: str,
    ) -> Asking[None]:
        probes = plan_probes(shares, owners, group.members, step=step)
        if not probes:
            return
        with self._recorder.within(Clock.PROBE):
            word = torch.zeros((2, len(probes)), dtype=torch.int64)
            for place, probe in enumerate(probes):
                if probe.owner == group.rank:
                    word[0, place] = self._digest(leaves[probe.share])
                if probe.checker == group.rank:
                    word[1, place] = yield from self._again(step, probe.share)
            said = self._told(word.flatten(), group)
            answers = list(zip(probes, said[: len(probes)], said[len(probes) :], strict=True))
            differing = [found for found in answers if found[1] != found[2]]
            if group.rank == group.members[0]:
                fields = {"shares": list(shares), "why": reason, "differing": [f[0].share for f in differing]}
                self._recorder.event("probe", step=step, **fields)
            if differing:
                verdict = yield from self._decide(step, *differing[0], group)
                raise CorruptionError(verdict, step=step)

    def _decide(self, step: int, probe: Probe, owner: int, checker: int, group: Group) -> Asking[Verdict]:
        word = torch.zeros(1, dtype=torch.int64)
        if probe.arbiter == group.rank:
            word[0] = yield from self._again(step, probe.share)
        (arbiter,) = self._told(word, group)
        return judge(probe, owner=owner, checker=checker, arbiter=arbiter)

    def _again(self, step: int, share: int) -> Asking[int]:
        leaf = yield from self._compute(step, share)
        digest = self._digest(leaf)
        self._release(leaf)
        return digest

    def _digest(self, leaf: Tensor) -> int:
        return bit_digest(leaf[: self._num_elements])

    def _told(self, word: Tensor, group: Group) -> list[int]:
        """What all ranks together say: each place is written by one of them, and 0 elsewhere."""
        with self._watch.waiting("all_reduce of a probe"):
            group.all_reduce(word)
        said: list[int] = word.tolist()
        return said
