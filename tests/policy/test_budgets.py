from trimtab.policy.budgets import SAME_STEP, Budget, Loss, LossKind, over_budget

BUDGET = Budget(node_losses=3, user_errors=3, forgiven_after=100)


def _losses(kind, *steps):
    return [Loss(kind=kind, step=step, epoch=epoch, committed=step) for epoch, step in enumerate(steps)]


def _verdicts(losses, budget=BUDGET):
    return [over_budget(losses[: count + 1], budget) for count in range(len(losses))]


def test_preemptions_are_never_counted():
    """FT-08: ten preemptions must not end a run at 97 %."""
    assert _verdicts(_losses(LossKind.PREEMPTION, *range(10))) == [""] * 10


def test_the_fourth_error_of_a_program_is_one_too_many():
    """FT-08: three are borne."""
    assert _verdicts(_losses(LossKind.USER_ERROR, 1, 2, 3, 4)) == [
        "", "", "", "that is user_error number 4, more than the budget of 3 (fault_tolerance.restarts.user_error)",
    ]  # fmt: skip


def test_causes_are_counted_apart():
    """FT-08: lost nodes do not use up the budget of errors."""
    mixed = [
        *_losses(LossKind.NODE_LOSS, 1, 2, 3),
        *_losses(LossKind.PREEMPTION, 4, 5),
        *_losses(LossKind.USER_ERROR, 6),
    ]
    assert _verdicts(mixed) == [""] * 6


def test_progress_forgives():
    """FT-09 (a): a failure a day for weeks is not a failure of the run."""
    assert _verdicts(_losses(LossKind.NODE_LOSS, *range(0, 2_000, 50))) == [""] * 40


def test_too_many_within_the_steps_that_count_are_said_to_be():
    """Four in a hundred steps, the first long forgiven."""
    verdicts = _verdicts(_losses(LossKind.NODE_LOSS, 0, 200, 210, 220, 230))
    assert verdicts[:4] == [""] * 4
    assert verdicts[4].startswith("that is node_loss number 4 within 100 steps, more than the budget of 3")


def test_a_step_that_fails_again_ends_the_run():
    """FT-09 (b): a deterministic error is paid for twice, not for ever."""
    assert _verdicts(_losses(LossKind.USER_ERROR, 7, 7)) == ["", "step 7 failed 2 times and would fail again"]


def test_peers_that_are_lost_together_are_one_failure_of_the_step():
    """A node with eight ranks takes them from one epoch."""
    together = [Loss(kind=LossKind.NODE_LOSS, step=7, epoch=1, committed=7) for _ in range(8)]
    assert over_budget(together, Budget(node_losses=16)) == ""


def test_a_step_in_which_nodes_die_again_and_again_is_at_fault():
    """Two losses, the second while the others re-form, are borne; four are no chance."""
    verdicts = _verdicts(_losses(LossKind.NODE_LOSS, 7, 7, 7, 7), Budget(node_losses=16))
    assert verdicts == ["", "", "", "step 7 failed 4 times and would fail again"]
    assert SAME_STEP[LossKind.NODE_LOSS] == 4
