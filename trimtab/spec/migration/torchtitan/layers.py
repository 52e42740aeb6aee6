"""What layers compute again, and in which type.

Source: torchtitan 0.1.0, torchtitan/models/llama3/infra/parallelize.py: every k-th layer counts from 1; by operation,
attention and every second matrix product are kept.
"""

from trimtab.spec.migration.drafts import Draft

MODE, OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
CONVERTERS = "model.converters"

_BUT_OUTPUTS = "AND name NOT LIKE '%.mlp_residual'"
"""The output of a layer is what the next one is computed again from."""

_WHOLE_LAYERS = f"RECOMPUTE activations WHERE layer >= 0 {_BUT_OUTPUTS}"
_CHEAP_OPERATIONS = "RECOMPUTE activations WHERE layer >= 0 AND (kind = 'norm' OR name LIKE '%.hidden')"
_FLOAT8 = "quantize.linear.float8."


def answer_layers(draft: Draft) -> None:
    """Write what is computed again, and the types of products."""
    _answer_recomputation(draft)
    _answer_quantization(draft)
    compiled = draft.switch("compile.enable")
    for key in ("enable", "components", "backend"):
        if compiled:
            draft.impossible(f"compile.{key}", "no compiled graph in this release")
        else:
            draft.irrelevant(f"compile.{key}", "off")


def _answer_recomputation(draft: Draft) -> None:
    mode = draft.word(MODE) or "selective"
    option = str(draft.value(OPTION) or "2")
    if mode == "none":
        draft.irrelevant(MODE, "nothing is computed again, as here unless told")
        draft.irrelevant(OPTION, "nothing is computed again")
    elif mode == "full":
        draft.carried(MODE, _WHOLE_LAYERS)
        draft.irrelevant(OPTION, "every layer is computed again")
    elif mode == "selective" and option.isdigit() and int(option) > 0:
        every = int(option)
        layers = f"layer % {every} = {every - 1}" if every > 1 else "layer >= 0"
        formula = f"RECOMPUTE activations WHERE {layers} {_BUT_OUTPUTS}"
        draft.carried(MODE, formula)
        draft.carried(OPTION, formula)
    elif mode == "selective" and option == "op":
        reason = "attention and all matrix products are kept, not every second one"
        draft.carried(MODE, _CHEAP_OPERATIONS)
        draft.changed(OPTION, _CHEAP_OPERATIONS, reason=reason)
    else:
        reason = "RECOMPUTE names activations; no budget is filled"
        draft.impossible(MODE, reason)
        draft.impossible(OPTION, reason)
    for key in _OTHER_KEYS:
        draft.irrelevant(f"activation_checkpoint.{key}", "how it is done is the runtime's affair")
    for key in ("memory_budget", "per_op_sac_force_recompute_mm_shapes_by_fqns"):
        draft.impossible(
            f"activation_checkpoint.{key}", "RECOMPUTE names activations by layer, kind and name"
        )


_OTHER_KEYS = (
    "early_stop",
    "visualize_memory_budget_pareto",
    "preserve_rng_state",
    "determinism_check",
    "debug",
)


def _answer_quantization(draft: Draft) -> None:
    converters = draft.value(CONVERTERS) or []
    names = converters if isinstance(converters, list) else str(converters).split(",")
    is_float8 = "float8" in names or bool(draft.switch("float8.enable_float8_linear"))
    if "float8" in names:
        draft.changed(
            CONVERTERS, "COMPUTE layers IN fp8", reason="how tensors are scaled is the runtime's choice"
        )
    elif names:
        draft.impossible(CONVERTERS, "products run in fp32, bf16, fp16 or fp8")
    else:
        draft.irrelevant(CONVERTERS, "none")
    if is_float8:
        reason = "how tensors are scaled is the runtime's choice"
        draft.changed("float8.enable_float8_linear", "COMPUTE layers IN fp8", reason=reason)
    else:
        draft.irrelevant("float8.enable_float8_linear", "off")
    _answer_float8(draft, is_float8=is_float8)
    for prefix in ("quantize.linear.mx.", "quantize.grouped_mm.mx.", "quantize.grouped_mm.float8.", "mx."):
        for key in (
            "recipe_name",
            "filter_fqns",
            "mxfp8_dim1_cast_kernel_choice",
            "fqns",
            "use_fp8_dim1_cast_triton_kernel",
        ):
            draft.irrelevant(f"{prefix}{key}", "of a converter that the file does not name")
    draft.irrelevant("model.print_after_conversion", "explain shows the plan")


def _answer_float8(draft: Draft, *, is_float8: bool) -> None:
    lost = {
        "filter_fqns": "COMPUTE speaks of whole layers; the head is none of them",
        "recipe_name": "how tensors are scaled is the runtime's choice",
        "enable_fsdp_float8_all_gather": "parameters are gathered in the type that they are kept in",
        "precompute_float8_dynamic_scale_for_fsdp": "parameters are gathered in the type that they are kept in",
        "emulate": "a switch for testing",
    }
    for key, reason in lost.items():
        flag = f"{_FLOAT8}{key}"
        is_used = is_float8 and draft.value(flag) not in (False, None, [])
        if is_used:
            draft.impossible(flag, reason)
        else:
            draft.irrelevant(flag, "off" if is_float8 else "of float8, which is off")
    for key in (
        "force_recompute_fp8_weight_in_bwd",
        "scaling_type_input",
        "scaling_type_weight",
        "scaling_type_grad_output",
    ):
        draft.irrelevant(f"float8.{key}", "how it is done is the runtime's affair")
