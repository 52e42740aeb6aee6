"""A network as flags of Megatron-LM."""

from collections.abc import Iterator, Mapping
from typing import Any

from trimtab.spec.migration.roles import Roles, find_roles
from trimtab.spec.migration.sheets import Sheet
from trimtab.spec.migration.targets import Exportable

_EXACT: Mapping[str, str] = {
    "layers": "--num-layers",
    "embed": "--hidden-size",
    "heads": "--num-attention-heads",
    "mlp": "--ffn-hidden-size",
    "context": "--max-position-embeddings",
    "norm_eps": "--norm-epsilon",
}
"""Fields whose value stands behind a flag as it is."""


def write_network(sheet: Sheet, exportable: Exportable) -> None:
    """The network's flags, and for each key under model those that it stands for."""
    loaded, network = exportable.loaded, exportable.network
    model = loaded.job.model
    if not network:
        sheet.refuse(
            "model.module",
            model.module or "",
            "a class of your own: name its network where Megatron-LM builds one",
        )
        sheet.warnings.append("the flags of the network are missing: its class is your own")
        return
    flags = {field: list(_flags(field, network)) for field in network}
    everything = [flag for of_field in flags.values() for flag in of_field]
    for path, value in model.model_dump(exclude_none=True, exclude={"args", "configuration"}).items():
        if path in ("preset", "folder"):
            sheet.carry(f"model.{path}", str(value), *everything)
        elif flags.get(path):
            sheet.carry(f"model.{path}", str(value), *flags[path])
        else:
            sheet.drop(f"model.{path}", str(value), "the default there")
    _warn(sheet, network, find_roles(loaded))


def _flags(field: str, network: Mapping[str, Any]) -> Iterator[str]:
    """The flags that say one field; none where Megatron's default says it."""
    value = network[field]
    if field == "mlp" and network.get("experts"):
        yield f"--moe-ffn-hidden-size {value}"
        yield f"--ffn-hidden-size {value}"
    elif field in _EXACT:
        yield f"{_EXACT[field]} {_number(value)}"
    elif field in _WRITERS:
        yield from _WRITERS[field](value, network)


def _kv_heads(value: Any, network: Mapping[str, Any]) -> Iterator[str]:
    if value != network["heads"]:
        yield "--group-query-attention"
        yield f"--num-query-groups {value}"


def _head_size(value: Any, network: Mapping[str, Any]) -> Iterator[str]:
    if value and value * network["heads"] != network["embed"]:
        yield f"--kv-channels {value}"


def _vocab(value: Any, network: Mapping[str, Any]) -> Iterator[str]:
    yield f"--vocab-size {value}"
    yield "--make-vocab-size-divisible-by 1"


def _norm(value: Any, network: Mapping[str, Any]) -> Iterator[str]:
    yield f"--normalization {'RMSNorm' if value == 'rmsnorm' else 'LayerNorm'}"


def _positions(value: Any, network: Mapping[str, Any]) -> Iterator[str]:
    if value == "rotary":
        yield "--position-embedding-type rope"
        yield f"--rotary-base {_number(network['rope_base'])}"
    else:
        yield "--position-embedding-type learned_absolute"


def _bias(value: Any, network: Mapping[str, Any]) -> Iterator[str]:
    if value in (False, "qkv"):
        yield "--disable-bias-linear"
    if value == "qkv":
        yield "--add-qkv-bias"


def _dropout(value: Any, network: Mapping[str, Any]) -> Iterator[str]:
    yield f"--hidden-dropout {_number(value)}"
    yield f"--attention-dropout {_number(value)}"


def _experts(value: Any, network: Mapping[str, Any]) -> Iterator[str]:
    if value:
        yield f"--num-experts {value}"
        yield f"--moe-router-topk {network['top_k']}"


def _window(value: Any, network: Mapping[str, Any]) -> Iterator[str]:
    if value:
        yield f"--window-size {value - 1},0"


_WRITERS = {
    "kv_heads": _kv_heads,
    "head_size": _head_size,
    "vocab": _vocab,
    "norm": _norm,
    "positions": _positions,
    "activation": lambda value, network: iter(["--swiglu"] if value == "swiglu" else []),
    "tied": lambda value, network: iter([] if value else ["--untie-embeddings-and-output-weights"]),
    "bias": _bias,
    "dropout": _dropout,
    "qk_norm": lambda value, network: iter(["--qk-layernorm"] if value else []),
    "experts": _experts,
    "top_k": lambda value, network: iter([f"--moe-router-topk {value}"] if value else []),
    "window": _window,
}


def _warn(sheet: Sheet, network: Mapping[str, Any], roles: Roles) -> None:
    tensor = roles.size(roles.tensor)
    if network["vocab"] % tensor:
        padded = -(-network["vocab"] // tensor) * tensor
        sheet.warnings.append(
            f"a vocabulary of {network['vocab']} is not a multiple of {tensor}: it becomes {padded} there"
        )
    if network.get("rope_scaling"):
        sheet.warnings.append(
            "rotary frequencies are slowed down in this network: say it with --use-rope-scaling and its factor"
        )
    if network.get("window") and network.get("full_layers"):
        sheet.warnings.append(
            "some layers of this network see everything: say it with --window-attn-skip-freq"
        )


def _number(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
