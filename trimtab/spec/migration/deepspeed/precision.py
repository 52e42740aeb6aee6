"""Types: what products run in, what is kept in fewer bits, how a step that is not finite is met."""

from trimtab.spec.migration.deepspeed.training_arguments import FILLS
from trimtab.spec.migration.drafts import Draft
from trimtab.spec.migration.settings import MigrationError

COMPUTE = "train.compute"

_LOSS_SCALE_KEYS = (
    "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis", "min_loss_scale",
)  # fmt: skip
_NO_FP16 = (
    "fp16 becomes bf16, which has the range of fp32 and needs no loss scale, but a device with bf16 units"
)


def computes_in_bf16(draft: Draft) -> bool:
    """Whether products run in bf16 here: for bf16 and for fp16 there."""
    sections = ("bf16", "fp16", "amp", "torch_autocast")
    return any(draft.switch(f"{section}.enabled") for section in sections)


def answer_precision(draft: Draft) -> None:
    """Write the type of matrix products and of what is stored.

    Raises: MigrationError if fp16 and bf16 are both on, as DeepSpeed does.
    """
    if draft.switch("fp16.enabled") and draft.switch("bf16.enabled"):
        raise MigrationError("fp16 and bf16 are both enabled; DeepSpeed takes one of them")
    compute = "bf16" if computes_in_bf16(draft) else "fp32"
    draft.put({COMPUTE: compute})
    _answer_bf16(draft, compute)
    _answer_fp16(draft, compute)
    _answer_autocast(draft)
    _answer_apex(draft)
    _answer_data_types(draft)
    if compute == "fp32" and draft.is_auto("bf16.enabled"):
        draft.warnings.append(
            "The type of products is left to Hugging Face (auto); the job computes in fp32, which is the default "
            "there. Set train.compute to bf16 if your TrainingArguments do, or import with them: -- --bf16"
        )


def _answer_bf16(draft: Draft, compute: str) -> None:
    if draft.is_auto("bf16.enabled"):
        draft.changed("bf16.enabled", {COMPUTE: compute}, reason=FILLS["bf16.enabled"].reason)
    elif draft.switch("bf16.enabled"):
        draft.carried("bf16.enabled", {COMPUTE: compute})
    else:
        draft.irrelevant("bf16.enabled", "off")
    checks = "bf16.check_grad_overflow"
    if draft.switch(checks):
        draft.carried(checks, {"train.on_nonfinite": "skip"})
    else:
        draft.impossible(
            checks, "a step that is not finite is skipped, stops or rolls back, but is never applied"
        )
    for key, formula in _KEPT_IN_BF16.items():
        if draft.switch(f"bf16.{key}"):
            draft.carried(f"bf16.{key}", formula)
        else:
            draft.irrelevant(f"bf16.{key}", "kept in fp32, as here unless told")
    draft.irrelevant("bf16.immediate_grad_update", "gradients are added as they come")


_KEPT_IN_BF16 = {
    "bf16_master_weights_and_grads": "KEEP params, grads IN bf16",
    "bf16_optimizer_states": "KEEP states IN bf16",
}


def _answer_fp16(draft: Draft, compute: str) -> None:
    is_on = draft.switch("fp16.enabled")
    if draft.is_auto("fp16.enabled"):
        draft.changed("fp16.enabled", {COMPUTE: compute}, reason=FILLS["fp16.enabled"].reason)
    elif is_on:
        draft.changed("fp16.enabled", {COMPUTE: compute}, reason=_NO_FP16)
    else:
        draft.irrelevant("fp16.enabled", "off")
    if draft.switch("fp16.fp16_master_weights_and_grads"):
        draft.impossible("fp16.fp16_master_weights_and_grads", "master weights in fp16 lose small updates")
    else:
        draft.irrelevant("fp16.fp16_master_weights_and_grads", "kept in fp32, as here unless told")
    for key in _LOSS_SCALE_KEYS:
        if is_on:
            draft.impossible(f"fp16.{key}", "no loss scale: bf16 has the range of fp32")
        else:
            draft.irrelevant(f"fp16.{key}", "scales the loss for fp16, which is not on")
    for key in ("auto_cast", "fp16"):
        draft.irrelevant(f"fp16.{key}", "inputs take the type that products run in")


def _answer_autocast(draft: Draft) -> None:
    if not draft.switch("torch_autocast.enabled"):
        for key in ("enabled", "dtype", "lower_precision_safe_modules"):
            draft.irrelevant(f"torch_autocast.{key}", "autocast is off")
        return
    draft.carried("torch_autocast.enabled", {COMPUTE: "bf16"})
    if (draft.word("torch_autocast.dtype") or "").removeprefix("torch.") in ("float16", "fp16", "half"):
        draft.changed("torch_autocast.dtype", {COMPUTE: "bf16"}, reason=_NO_FP16)
    else:
        draft.carried("torch_autocast.dtype", {COMPUTE: "bf16"})
    reason = "every matrix product runs in the type, sums and norms in fp32"
    draft.impossible("torch_autocast.lower_precision_safe_modules", reason)


def _answer_apex(draft: Draft) -> None:
    if draft.switch("amp.enabled"):
        draft.changed("amp.enabled", {COMPUTE: "bf16"}, reason=_NO_FP16)
    for flag in draft.unanswered("amp."):
        draft.irrelevant(flag, "of Apex, which is not used")


def _answer_data_types(draft: Draft) -> None:
    accumulated = "data_types.grad_accum_dtype"
    if draft.word(accumulated) in ("bf16", "fp16"):
        draft.impossible(accumulated, "gradients are added in fp32, whatever products run in")
    else:
        draft.irrelevant(accumulated, "gradients are added in fp32 in any case")
    for key in ("param_dtype", "buffer_dtype"):
        draft.impossible(
            f"data_types.{key}", "products have one type, train.compute; KEEP says how a table is kept"
        )
