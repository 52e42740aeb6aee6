"""The learning rate over the steps, and how many there are: a DeepSpeed file knows them from its scheduler only.

Source: DeepSpeed 0.19, deepspeed/runtime/lr_schedules.py. There the warm-up rises with the logarithm of the
step unless ``warmup_type`` says ``linear``; here it rises in a line.
"""

from trimtab.spec.migration.deepspeed.optimizers import LR, peak_rate_key
from trimtab.spec.migration.deepspeed.training_arguments import FILLS
from trimtab.spec.migration.drafts import Draft

TYPE = "scheduler.type"
PARAMS = "scheduler.params."
WARMUP = f"{PARAMS}warmup_num_steps"
PEAK = f"{PARAMS}warmup_max_lr"
TOTAL = f"{PARAMS}total_num_steps"

STAND_IN_STEPS = 1000
"""Length of a run whose file does not say it."""

_DEFAULT_WARMUP = 1000
_DEFAULT_COSINE_FLOOR = 1e-4
_SCHEDULE = "train.lr_schedule."


def answer_schedule(draft: Draft) -> None:
    """Write the schedule and the number of steps."""
    name = draft.word(TYPE)
    if name == "WarmupLR":
        _answer_warmup(draft, "constant")
        draft.carried(TYPE, f"{_SCHEDULE}constant")
    elif name == "WarmupDecayLR":
        _answer_warmup(draft, "linear")
        draft.carried(TYPE, {f"{_SCHEDULE}linear.floor": 0})
    elif name == "WarmupCosineLR":
        _answer_warmup(draft, "cosine")
        _answer_cosine(draft)
    elif name == "OneCycle":
        _answer_cycle(draft)
    elif TYPE in draft:
        reason = "the schedules here are constant, linear, cosine, step, inverse_sqrt and restarts"
        draft.impossible(TYPE, reason)
    for key in _OTHER_KEYS:
        if f"{PARAMS}{key}" in draft.unanswered(PARAMS):
            draft.impossible(f"{PARAMS}{key}", f"no part of what becomes of {name}")
    _answer_steps(draft)


_OTHER_KEYS = (
    "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "warmup_min_ratio", "cos_min_ratio", "last_batch_iteration",
    "lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate", "lr_range_test_staircase",
    "cycle_first_stair_count", "cycle_second_stair_count",
)  # fmt: skip


def _answer_warmup(draft: Draft, schedule: str) -> None:
    target = f"{_SCHEDULE}{schedule}.warmup"
    if draft.is_auto(WARMUP):
        draft.changed(WARMUP, {target: FILLS[WARMUP].default}, reason=FILLS[WARMUP].reason)
    else:
        steps = draft.integer(WARMUP)
        draft.carried(WARMUP, {target: _DEFAULT_WARMUP if steps is None else steps})
    if draft.word(f"{PARAMS}warmup_type") == "linear":
        draft.carried(f"{PARAMS}warmup_type", target)
    elif f"{PARAMS}warmup_type" in draft:
        draft.changed(f"{PARAMS}warmup_type", target, reason="the rise is a line here")
    elif draft.integer(WARMUP):
        draft.warnings.append(
            "DeepSpeed warms up with the logarithm of the step, since warmup_type does not say linear; here the "
            "rate rises in a line."
        )
    for key in ("warmup_min_lr", "warmup_min_ratio"):
        if draft.number(f"{PARAMS}{key}"):
            draft.impossible(f"{PARAMS}{key}", "the rise begins at 0")
        else:
            draft.irrelevant(f"{PARAMS}{key}", "0, as here")
    _answer_peak(draft)


def _answer_peak(draft: Draft) -> None:
    """The scheduler's peak replaces the optimizer's rate; left open, it is the optimizer's."""
    target = peak_rate_key(draft)
    peak = draft.number(PEAK)
    if draft.is_auto(PEAK):
        draft.changed(PEAK, target, reason=FILLS[PEAK].reason)
        if draft.number(LR) is None:
            draft.put({target: FILLS[PEAK].default})
    elif peak is not None:
        draft.carried(PEAK, {target: peak})
        if draft.number(LR) not in (None, peak):
            draft.irrelevant(LR, "the scheduler's warmup_max_lr replaces it")


def _answer_cosine(draft: Draft) -> None:
    target, flag = f"{_SCHEDULE}cosine.floor", f"{PARAMS}cos_min_ratio"
    floor = draft.number(flag)
    draft.carried(flag, {target: _DEFAULT_COSINE_FLOOR if floor is None else floor})
    draft.carried(TYPE, f"{_SCHEDULE}cosine")


def _answer_cycle(draft: Draft) -> None:
    """Up and down once: a warm-up and a fall, if the run ends where the cycle does."""
    first = draft.integer(f"{PARAMS}cycle_first_step_size") or 2000
    second = draft.integer(f"{PARAMS}cycle_second_step_size") or first
    low, high = draft.number(f"{PARAMS}cycle_min_lr") or 0, draft.number(f"{PARAMS}cycle_max_lr") or 0
    linear = f"{_SCHEDULE}linear"
    draft.changed(TYPE, linear, reason="the cycle is a warm-up and a fall; what follows it has no equivalent")
    draft.carried(f"{PARAMS}cycle_max_lr", {peak_rate_key(draft): high})
    draft.irrelevant(LR, "the scheduler's cycle_max_lr replaces it")
    floor = round(low / high, 6) if high else 0
    draft.changed(
        f"{PARAMS}cycle_min_lr",
        {f"{linear}.floor": floor},
        reason="a fraction of the peak; the rise begins at 0",
    )
    draft.carried(f"{PARAMS}cycle_first_step_size", {f"{linear}.warmup": first})
    draft.changed(
        f"{PARAMS}cycle_second_step_size",
        {"train.steps": first + second},
        reason="the fall ends with the run, so the run ends with the cycle",
    )
    draft.put({"train.steps": first + second})
    for key in ("cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"):
        draft.impossible(f"{PARAMS}{key}", "the betas of the optimizer stay")
    for key in ("decay_step_size", "decay_lr_rate"):
        draft.impossible(f"{PARAMS}{key}", "falls after the cycle, where the run has ended")


def _answer_steps(draft: Draft) -> None:
    if draft.writes("train.steps"):
        return
    if draft.integer(TOTAL):
        draft.carried(TOTAL, {"train.steps": draft.integer(TOTAL)})
        return
    steps = max(STAND_IN_STEPS, 10 * (draft.integer(WARMUP) or 0))
    given = draft.integer("--max_steps") or 0
    if given > 0:
        draft.changed(TOTAL, {"train.steps": given}, reason="auto is Hugging Face's max_steps")
        return
    reason = "auto is computed by Hugging Face from the length of the data"
    draft.changed(TOTAL, {"train.steps": steps}, reason=reason)
    draft.put({"train.steps": steps}, note="stands in")
    draft.warnings.append(
        f"The file does not say how long to train: {steps} steps stand in. Set train.steps."
    )
