"""Steps of a user's class whose tensors are stored in pieces: shares, sums, norm, update."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.plan import TAIL
from trimtab.plan.tables import Table
from trimtab.policy import assign_shares, shares_of
from trimtab.runtime.asking import Asking, Computed
from trimtab.runtime.faults import Faults
from trimtab.runtime.flat_state import BORDER_REQUESTS, LOSS_SUM, NUM_TARGETS, STOP_REQUESTS
from trimtab.runtime.laid_out import Timed
from trimtab.runtime.lowering.share_sums import Tree
from trimtab.runtime.models import Model
from trimtab.runtime.norms import BinnedSum, binned_sum_of_squares
from trimtab.runtime.process_groups import Group
from trimtab.runtime.random_keys import KeyedRandom
from trimtab.runtime.recorder import Recorder
from trimtab.runtime.share_sum import ShareSum
from trimtab.runtime.step import Requests, StepResult, StepRules, Work, part_of, scale_of
from trimtab.runtime.stored.guards import BufferGuard, explained
from trimtab.runtime.stored.module import StoredModule, Turn
from trimtab.runtime.stored.state import StoredState
from trimtab.runtime.watch import Watch
from trimtab.terms import Clock, Phase


class StoredRunner:
    """Runs steps on one rank; see ``trainer.Runner``.

    Args:
        rules: Of the run. With shares off every rank computes one part of the batch.
        microbatch: Samples that are computed at once.
        model: What answers.
        stored: Its module.
        state: Of the same; it is updated.
        load: Microbatches of a part of a step: (step, first sample inside the batch, samples).
        learning_rate: Of a step.
        timed: Is told of waits.
    """

    def __init__(
        self,
        *,
        rules: StepRules,
        microbatch: int,
        model: Model,
        stored: StoredModule,
        state: StoredState,
        keyed: KeyedRandom,
        load: Callable[[int, int, int], Sequence[Any]],
        learning_rate: Callable[[int], float],
        timed: Timed,
        recorder: Recorder,
        faults: Faults,
        watch: Watch,
    ) -> None:
        self._rules, self._microbatch, self._model = rules, microbatch, model
        self._stored, self._state, self._keyed = stored, state, keyed
        self._load, self._learning_rate, self._timed = load, learning_rate, timed
        self._recorder, self._faults, self._watch = recorder, faults, watch
        self._guard = BufferGuard(model.module)
        self._num_parts = rules.num_shares or stored.storage.num_ranks
        self._owners: tuple[int, ...] = ()
        self._leaves: dict[int, Tensor] = {}
        self._tails: dict[int, Tensor] = {}
        self.work = Work()

    def held(self, step: int) -> tuple[int, ...]:
        """See Runner: none, for a step that was interrupted is computed again."""
        return ()

    def enter(self, group: Group, *, step: int, owners: Sequence[int]) -> None:
        """See Runner; shares lie as they do when nothing is in flight."""
        self._owners = assign_shares(self._num_parts, group.members)

    def rewind(self, step: int) -> None:
        """See Runner: nothing is remembered."""

    def forget(self) -> None:
        """See Runner: nothing is kept."""

    def leave(self) -> None:
        """See Runner."""
        self._stored.leave()
        self._forget()

    def answer(self, microbatch: Any) -> Computed:
        """See Runner."""
        tokens, targets = microbatch
        try:
            loss, count = self._model.loss_sum(tokens, targets)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        except RuntimeError as error:
            raise explained(error, self._stored.storage) from error
        return Computed(loss_sum=loss.detach(), targets=count, tokens=tokens.numel())

    def ask(self, step: int, requests: Requests) -> Asking[StepResult]:
        """See Runner. A rank without a share left computes its last microbatch again, if others need it for theirs."""
        self.work = Work()
        self._forget()
        self._stored.forget()
        self._watch.enter(Phase.COMPUTE, step)
        with self._recorder.within(Clock.COMPUTE):
            yield from self._compute(step)
            self._request(requests)
            self._watch.enter(Phase.REDUCE, step)
            sums = self._sums(step)
            tail, squares = self._agreed(sums)
            self._watch.enter(Phase.APPLY, step)
            self._faults.at_phase(Phase.APPLY, step)
            result = self._commit(step, sums, tail, squares)
        self.work.waits = self._timed.taken()
        self.work.sent_bytes = self._group.tally.taken()
        return result

    @property
    def _group(self) -> Group:
        return self._stored.carrier.group

    def _forget(self) -> None:
        self._leaves.clear()
        self._tails.clear()

    # Shares.

    def _turns(self, rank: int) -> list[Turn]:
        """The microbatches of a rank."""
        found = []
        for share in shares_of(rank, self._owners):
            first, end = part_of(self._rules.batch, self._num_parts, share)
            count = -(-(end - first) // self._microbatch)
            found += [Turn(share=share, number=n, is_last=n == count - 1) for n in range(count)]
        return found

    def _compute(self, step: int) -> Asking[None]:
        turns = [self._turns(rank) for rank in self._group.members]
        own = turns[self._stored.place]
        num_turns = max(map(len, turns)) if self._stored.needs_all else len(own)
        loaded: Sequence[Any] = ()
        started = time.perf_counter()
        for index in range(num_turns):
            turn = own[index] if index < len(own) else None
            shown = own[min(index, len(own) - 1)]
            if turn is not None and turn.number == 0:
                loaded, started = self._loaded(step, turn.share), time.perf_counter()
            self._watch.move()
            self._watch.raise_if_fenced()
            self._keyed.start_microbatch(
                seed=self._rules.seed, step=step, share=shown.share, microbatch=shown.number
            )
            self._stored.begin([each[index] if index < len(each) else None for each in turns])
            computed = yield loaded[shown.number]
            assert computed is not None
            self._stored.end()
            self._guard.check()
            if turn is None:
                self._stored.drop_whole_gradients()
            else:
                self._note(turn, computed)
                if turn.is_last:
                    self._finish_share(step, turn.share, started)

    def _loaded(self, step: int, share: int) -> Sequence[Any]:
        first, end = part_of(self._rules.batch, self._num_parts, share)
        outer = self._recorder.switch(Clock.INPUT_WAIT)
        microbatches = self._load(step, first, end - first)
        self._faults.in_timer(Clock.INPUT_WAIT, step)
        self._recorder.switch(outer)
        return microbatches

    def _note(self, turn: Turn, computed: Computed) -> None:
        if turn.number == 0:
            self._tails[turn.share] = torch.zeros(TAIL, dtype=torch.float32)
        tail = self._tails[turn.share]
        tail[LOSS_SUM] += computed.loss_sum.cpu()
        tail[NUM_TARGETS] += computed.targets
        self.work.tokens += computed.tokens
        self.work.targets += computed.targets

    def _finish_share(self, step: int, share: int, started: float) -> None:
        if self._stored.whole_grads.names:
            self._leaves[share] = self._stored.take_whole_gradients()
        self.work.computed.append(share)
        self._recorder.event("share", step=step, share=share)
        self._faults.slow_down(step, time.perf_counter() - started)
        self._faults.in_timer(Clock.COMPUTE, step)
        self._faults.at_phase(Phase.COMPUTE, step)

    def _request(self, requests: Requests) -> None:
        tail = self._tails[min(self._tails)]
        tail[STOP_REQUESTS], tail[BORDER_REQUESTS] = float(requests.stop), float(requests.border)

    # Sums.

    def _sums(self, step: int) -> dict[str, Tensor]:
        """Own pieces of the gradients of all trained parameters, summed over all shares."""
        found: dict[str, Tensor] = {}
        self._faults.at_phase(Phase.REDUCE, step)
        for cut, row in self._stored.take_summed():
            found |= {name: cut.piece(row, name) for name in cut.names}
        if self._leaves:
            cut = self._stored.whole_grads
            row = self._reduced(cut.length * cut.num_ranks)
            found |= {name: cut.piece(row, name) for name in cut.names}
        if found and self._faults.poisons(step):
            next(iter(found.values()))[:1] = math.nan
        return found

    def _reduced(self, length: int) -> Tensor:
        device = next(iter(self._leaves.values())).device
        shares = ShareSum(
            num_shares=self._num_parts, length=length, capacity=length, group=self._group, device=device
        )
        with self._timed.waiting("all_to_all", self._group.members):
            row = shares.reduce(self._leaves, self._owners, lambda: None)
        self._leaves.clear()
        return row

    def _agreed(self, sums: Mapping[str, Tensor]) -> tuple[list[float], float]:
        """What all shares have counted, added in the tree, and the sum of squares of all sums.

        One message: numbers of shares as the bits of fp64, of which all ranks but one say zero, and limbs of the norm.
        """
        squares = sum((binned_sum_of_squares(piece) for piece in sums.values()), BinnedSum())
        tails = torch.zeros((self._num_parts, TAIL), dtype=torch.float64)
        for share, tail in self._tails.items():
            tails[share] = tail
        limbs = torch.tensor(squares.to_limbs(), dtype=torch.int64)
        word = torch.cat([tails.view(torch.int64).flatten(), limbs])
        self._stored.carrier.add_up(word)
        said = word[: tails.numel()].view(torch.float64).view_as(tails).float()
        leaves = {(share, 1): said[share] for share in range(self._num_parts)}
        tree = Tree(self._num_parts)
        tree.fold(leaves)
        total = BinnedSum.from_limbs(word[tails.numel() :].tolist())
        return leaves[tree.root].tolist(), total.to_float()

    # Update.

    def _commit(
        self, step: int, sums: dict[str, Tensor], tail: Sequence[float], squares: float
    ) -> StepResult:
        lr = self._learning_rate(step)
        result = StepResult.of_sums(step, tail, squares=lambda: squares, lr=lr)
        if result.is_applied and result.grad_norm is not None:
            scale = scale_of(result.targets, result.grad_norm, self._rules.clip)
            for piece in sums.values():
                piece.mul_(scale)
            self._update(step, sums, lr)
        return result

    def _update(self, step: int, gradients: dict[str, Tensor], lr: float) -> None:
        if any(Table.STATES not in p.stored for p in self._stored.storage.parameters):
            gradients |= self._stored.sum_of_pieces(gradients)
        with self._state.updating():
            self._state.apply(gradients, lr=lr)
            self._watch.enter(Phase.GATHER, step)
            self._faults.at_phase(Phase.GATHER, step)
            self._stored.spread_updates()
