"""The optimizer: AdamW and SGD are here, the others are named with what is lost.

What a file leaves out has DeepSpeed's value, which is spelt out in the job where ours differs.

Source of defaults: DeepSpeed 0.19, deepspeed/ops/adam/fused_adam.py (which decouples the decay unless
``adam_w_mode`` is false); torch.optim.SGD.
"""

from collections.abc import Mapping
from typing import Any

from trimtab.spec.migration.deepspeed.training_arguments import FILLS
from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.settings import MigrationError

TYPE = "optimizer.type"
PARAMS = "optimizer.params."
ADAMW = "train.optimizer.adamw."
SGD = "train.optimizer.sgd."

LR = f"{PARAMS}lr"


_ADAM: Mapping[str, Any] = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
"""The numbers of Adam, and what they are if the file says nothing."""

_ADAM_LIKE = {
    "adam": "",
    "adamw": "",
    "onebitadam": "AdamW without the 1-bit compression; COMPRESS int8 or powersgd(rank) of REDUCE sends less, too",
    "zerooneadam": "AdamW without 1-bit compression and skipped sums; AVERAGE params skips sums by rule",
    "muadam": "AdamW without the rates by width of muP",
    "muadamw": "AdamW without the rates by width of muP",
}

_OTHER_OPTIMIZERS = ("lamb", "onebitlamb", "lion", "muon", "adagrad", "musgd", "adafactor")

_COMPRESSION_KEYS = (
    "freeze_step", "var_freeze_step", "var_update_scaler", "local_step_scaler", "local_step_clipper", "cuda_aware",
    "comm_backend_name", "max_coeff", "min_coeff", "coeff_beta", "factor_max", "factor_min", "factor_threshold",
)  # fmt: skip


def answer_optimizer(draft: Draft) -> None:
    """Write the optimizer with its numbers.

    Raises: MigrationError if a number cannot be read.
    """
    _answer_kernels(draft)
    if TYPE not in draft:
        draft.warnings.append(
            "The file names no optimizer, since the script makes its own: set train.optimizer to it."
        )
        return
    name = (draft.word(TYPE) or "").casefold()
    if name in _ADAM_LIKE:
        _answer_adam(draft, name)
    elif name == "sgd":
        _answer_sgd(draft)
    else:
        reason = "adamw and sgd are here; the job has adamw with our defaults, whose rate you must choose"
        draft.impossible(TYPE, reason)
        for flag in draft.unanswered(PARAMS):
            draft.impossible(flag, f"belongs to {draft.word(TYPE)}")
        draft.warnings.append(f"No {draft.word(TYPE)} here: train.optimizer is not what the file says.")


def peak_rate_key(draft: Draft) -> str:
    """The key of the job file that holds the peak learning rate."""
    return f"{SGD}lr" if (draft.word(TYPE) or "").casefold() == "sgd" else f"{ADAMW}lr"


def _answer_kernels(draft: Draft) -> None:
    draft.irrelevant("optimizer.legacy_fusion", "how kernels are fused")
    draft.irrelevant("zero_allow_untested_optimizer", "no optimizer is refused for how state is stored")
    draft.irrelevant(
        "zero_force_ds_cpu_optimizer", "which kernel updates on the host is the runtime's affair"
    )


def _answer_adam(draft: Draft, name: str) -> None:
    for key, default in _ADAM.items():
        _answer_hyperparameter(draft, key, default)
    if reason := _ADAM_LIKE[name]:
        draft.changed(TYPE, "train.optimizer.adamw", reason=reason)
    else:
        draft.carried(TYPE, "train.optimizer.adamw")
    _answer_adam_mode(draft)
    if draft.switch(f"{PARAMS}bias_correction"):
        draft.irrelevant(f"{PARAMS}bias_correction", "always on")
    else:
        draft.impossible(f"{PARAMS}bias_correction", "the moments are always corrected for their start at 0")
    for key in _COMPRESSION_KEYS:
        draft.impossible(f"{PARAMS}{key}", "of the 1-bit compression, which is not here")
    for key in ("torch_adam", "fp32_optimizer_states", "set_grad_none"):
        draft.irrelevant(f"{PARAMS}{key}", "which kernel computes the same update")


def _answer_hyperparameter(draft: Draft, key: str, default: Any) -> None:
    flag, target = f"{PARAMS}{key}", f"{ADAMW}{key}"
    if draft.is_auto(flag):
        draft.changed(flag, {target: FILLS[flag].default}, reason=FILLS[flag].reason)
    elif flag not in draft:
        draft.carried(flag, {target: default})
    else:
        draft.carried(flag, {target: _betas(draft, flag) if key == "betas" else draft.number(flag)})


def _betas(draft: Draft, flag: str) -> list[float]:
    betas = draft.value(flag)
    if not isinstance(betas, list) or len(betas) != 2:
        raise MigrationError(f"{flag} must be two numbers")
    return betas


def _answer_adam_mode(draft: Draft) -> None:
    flag = f"{PARAMS}adam_w_mode"
    is_coupled = draft.switch(flag) is False and (draft.word(TYPE) or "").casefold() == "adam"
    if is_coupled and draft.number(f"{PARAMS}weight_decay"):
        draft.impossible(flag, "the decay is never part of the gradient: AdamW, not Adam")
    else:
        draft.irrelevant(flag, "without decay Adam and AdamW are one" if is_coupled else "AdamW, as here")


def _answer_sgd(draft: Draft) -> None:
    defaults = {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0}
    for key, default in defaults.items():
        flag = f"{PARAMS}{key}"
        if draft.is_auto(flag):
            reason = "auto is Hugging Face's, which this file does not hold"
            draft.changed(flag, {f"{SGD}{key}": default}, reason=reason)
        else:
            draft.carried(flag, {f"{SGD}{key}": draft.number(flag) if flag in draft else default})
    draft.carried(f"{PARAMS}nesterov", {f"{SGD}nesterov": bool(draft.switch(f"{PARAMS}nesterov"))})
    draft.carried(TYPE, "train.optimizer.sgd")
    if draft.number(f"{PARAMS}dampening"):
        draft.impossible(f"{PARAMS}dampening", "the momentum takes the whole gradient")
    else:
        draft.irrelevant(f"{PARAMS}dampening", "none, as here")
