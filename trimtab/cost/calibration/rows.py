"""Measured runs of others, row by row: what of them can be priced, and what was measured.

The columns are those of ``catalog/data/published_runs.csv.gz``; an empty field means that the source does not say. What
it does not say and what still follows from its framework and year is written down here, once, for all sources.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimtab.catalog import Accelerator, UnknownNameError, accelerator, published_shapes
from trimtab.cost.closed_form import Cases
from trimtab.terms import InputError

Row = Mapping[str, str]

REQUIRED_COLUMNS = (
    "row_id", "source", "year", "framework", "model", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "mlp",
    "vocab", "seq_len", "params_b", "n_experts", "topk", "accel", "accel_mem_gb", "n_accel", "accel_per_node", "intra_gbs",
    "inter_gbs_per_accel", "tp", "pp", "cp", "ep", "vpp", "mbs", "gbs", "recompute", "zero_stage", "precision",
    "attn", "tflops_per_accel", "tflops_kind", "mfu_pct", "iter_time_s", "mem_gb_per_accel", "outcome",
    "derived_iter_time_s", "note",
)  # fmt: skip
"""Columns that a file of measured runs must have; the last but one may be empty throughout."""

_ALIASES = {
    "A100": "A100-SXM-80GB",  # vTrain does not state the memory; time does not depend on it
    "H100-96GB-HBM2e-500W": "H100-SXM-80GB",  # torchtitan's cards: slower memory and less power than its namesake
    "H800-80GB": "H100-SXM-80GB",
}
"""Devices that stand for one that the catalog does not have."""

_ACHIEVABLE, _FP4_OVER_FP8 = 0.80, 1.6
"""Best product over the peak where nobody measured it (H100: 794 of 989), and of 4 bits over 8, remembered."""

_USUAL_VOCAB = 51200
"""Of GPT-2's tokenizer, padded; for a source that does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """One run of somebody else.

    Args:
        row_id, source: As in the file.
        labels: Framework, precision and device: what runs of one source may differ in beside sizes.
        problem: Why no time can be predicted, or why the one that was reported cannot be; empty if it can.
        columns: Of ``Cases``; empty if the shape or the layout is not known.
        step_s: As reported, else derived from reported throughput; None if neither is there.
        peak_bytes: Reported memory of a device; None if it is not.
        capacity_bytes: Memory of the device.
        is_out_of_memory: Whether the run ended so.
    """

    row_id: str
    source: str
    labels: tuple[str, str, str]
    problem: str
    columns: Mapping[str, float]
    step_s: float | None
    peak_bytes: float | None
    capacity_bytes: float
    is_out_of_memory: bool


def measured_runs(rows: Iterable[Row]) -> tuple[MeasuredRun, ...]:
    """What rows say, in order.

    Raises: InputError for a row without one of REQUIRED_COLUMNS, or with a field that should be a number and is not.
    """
    rows = tuple(rows)
    lacking = [name for name in REQUIRED_COLUMNS if rows and name not in rows[0]]
    if lacking:
        raise InputError(
            f"measured runs need columns that were not found: {', '.join(lacking)}\n"
            f"  found: {', '.join(rows[0])}\n  they may be empty where a source does not say"
        )
    return tuple(_measured(row) for row in rows)


def cases_of(runs: Sequence[MeasuredRun]) -> Cases:
    """The plans of runs that have one, in order."""
    return Cases.of({name: [run.columns[name] for run in runs] for name in runs[0].columns})


def model_flops(columns: Mapping[str, float]) -> float:
    """FLOPs of a step, every score of attention counted, nothing computed again: the habit of published figures."""
    c = columns
    attention = 4 * c["embed"] * (c["heads"] + c["kv_heads"]) * c["head_size"]
    width = c["mlp"] * c["top_k"] + c["shared_mlp"] if c["experts"] else c["mlp"]
    layer = (
        attention
        + 2 * c["embed"] * width * (1 + c["mlp_inputs"])
        + 4 * c["sequence"] * c["heads"] * c["head_size"]
    )
    return 3 * (c["layers"] * layer + 2 * c["embed"] * c["vocab"]) * c["batch"] * c["sequence"]


def _measured(row: Row) -> MeasuredRun:
    found = _Found(row)
    columns = found.columns() if not found.missing() else {}
    step_s = found.step_s(columns) if columns else found.number("iter_time_s")
    is_out_of_memory = row["outcome"] == "oom"
    problem = found.missing()
    if not problem and is_out_of_memory:
        problem = "ran out of memory: no time"
    if not problem and step_s is None:
        problem = "no time, and no throughput that one follows from"
    if not problem and step_s is not None:
        problem = found.impossible(columns, step_s)
    memory_gb, capacity_gb = found.number("mem_gb_per_accel"), found.number("accel_mem_gb")
    if capacity_gb is None:
        capacity_gb = found.device.memory_bytes / 2**30 if found.device else 0.0
    return MeasuredRun(
        row_id=row["row_id"],
        source=row["source"],
        labels=(row["framework"], _bits(row), row["accel"]),
        problem=problem,
        columns=columns,
        step_s=step_s,
        peak_bytes=None if memory_gb is None else memory_gb * 1e9,
        capacity_bytes=capacity_gb * 1e9,
        is_out_of_memory=is_out_of_memory,
    )


def _bits(row: Row) -> str:
    """Of the types that products are computed in: 4, 8 or 16."""
    precision = row["precision"].lower()
    if "fp4" in precision:
        return "4"
    return "8" if "fp8" in precision else "16"


class _Found:
    """What one row says, with what follows from it."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.shape = published_shapes().get(row["model"].split(" (")[0], {})  # "(tokendrop)" and the like
        self.device = _device(row["accel"])

    def number(self, name: str) -> float | None:
        """A field, or that of the model's published shape; None if neither says."""
        text = self.row.get(name) or self.shape.get(name, "")
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            raise InputError(
                f"row {self.row['row_id']!r} of measured runs: {name} is {text!r}; it must be a number or empty"
            ) from None

    def count(self, name: str, otherwise: float) -> float:
        """A field, or what holds where it is empty."""
        found = self.number(name)
        return otherwise if found is None else found

    def missing(self) -> str:
        """What a plan cannot be made without and the row does not say; empty if nothing."""
        if "DIMS INCONSISTENT" in self.row["note"]:
            return "degrees do not multiply to the devices, says its source"
        if self.device is None or not self._peak():
            return f"unknown device {self.row['accel']!r}"
        needed = ("hidden", "seq_len", "n_accel", "mbs", "gbs", "tp", "pp")
        lacking = [name for name in needed if self.number(name) is None]
        if self.number("layers") is None and self.number("params_b") is None:
            lacking.append("layers")
        if lacking:
            return f"not stated: {', '.join(lacking)}"
        wrong = [name for name in (*needed, "cp", "ep", "vpp") if not self.count(name, 1) > 0]
        return f"not above 0: {', '.join(wrong)}" if wrong else ""

    def impossible(self, columns: Mapping[str, float], step_s: float) -> str:
        """Why nobody can have measured this; empty if somebody can."""
        again = 4 / 3 if columns["recompute"] else 1.0
        # Causal kernels skip half of the scores: only what they compute is held against the peak.
        causal = model_flops({**columns, "sequence": columns["sequence"] / 2}) * 2
        share = again * causal / (step_s * columns["devices"] * self._peak())
        return f"would take {share:.2f} of the declared peak" if share > 1 else ""

    def step_s(self, columns: Mapping[str, float]) -> float | None:
        """As reported, else from the reported rate."""
        for name in ("iter_time_s", "derived_iter_time_s"):
            if (seconds := self.number(name)) is not None:
                return seconds
        devices = columns["devices"]
        rate, share = self.number("tflops_per_accel"), self.number("mfu_pct")
        if rate and self.row["tflops_kind"].startswith("model"):
            return model_flops(columns) / (rate * 1e12 * devices)
        if share:
            return model_flops(columns) / (share / 100 * self._peak(bits="16") * devices)
        return None

    def columns(self) -> Mapping[str, float]:
        """Of ``Cases``."""
        row, device = self.row, self.device
        assert device is not None
        hidden = self.count("hidden", 0)
        # Dense GPT: 12 h^2 parameters a layer (Narayanan et al. 2021, equation 2).
        layers = self.count("layers", round(self.count("params_b", 0) * 1e9 / (12 * hidden**2)))
        heads = self.count("heads", max(1, round(hidden / (128 if hidden % 128 == 0 else 120))))
        tensor, pipeline, devices = self.count("tp", 1), self.count("pp", 1), self.count("n_accel", 1)
        context = self.count("cp", 1)
        microbatch, batch = self.count("mbs", 1), self.count("gbs", 1)
        runs = batch * tensor * pipeline * context / (devices * microbatch)
        if pipeline > 1 and runs < pipeline <= microbatch:
            microbatch = 1.0  # torchtitan states the local batch, which its pipeline cuts up
        vocab = self.count("vocab", _USUAL_VOCAB)
        bits, framework = _bits(row), row["framework"]
        is_deepspeed = framework.startswith("Megatron-DeepSpeed")
        is_recent = int(row["year"]) >= 2023 and not is_deepspeed
        return {
            "layers": layers,
            "embed": hidden,
            "heads": heads,
            "kv_heads": self.count("kv_heads", heads),
            "head_size": self.count("head_size", hidden / heads),
            "mlp": self.count("ffn_hidden", 4 * hidden),
            "mlp_inputs": 2.0 if (row["mlp"] or self.shape.get("mlp")) == "swiglu" else 1.0,
            "vocab": -(-vocab // (128 * tensor)) * 128 * tensor,
            "is_tied": 0.0 if (row["mlp"] or self.shape.get("mlp")) == "swiglu" else 1.0,
            "experts": self.count("n_experts", 0),
            "top_k": self.count("topk", 0),
            "shared_mlp": self.count("shared_ffn", 0),
            "sequence": self.count("seq_len", 0),
            "batch": batch,
            "microbatch": microbatch,
            "devices": devices,
            "tensor": tensor,
            "pipeline": pipeline,
            "virtual": max(1.0, self.count("vpp", 1)),
            "fill": 1.0,
            "keeps_all": 0.0,
            "ends_together": 0.0,
            "flushes": 1.0,
            "context": context,
            "expert": self.count("ep", 1),
            "whole_experts": 1.0,
            "store": self.count("zero_stage", 1 if is_deepspeed else 0),
            "recompute": float(row["recompute"] == "full"),
            "recompute_scores": float(row["recompute"].startswith("selective")),
            # Megatron-Core, NeMo, torchtitan and nanotron switch it on with tensor parallelism.
            "sequence_parallel": float(tensor > 1 and is_recent),
            "is_asynchronous": float("async TP" in row["note"]),
            "product_flops_per_s": self._best(bits),
            "attention_flops_per_s": self._best("16"),
            "memory_bytes_per_s": device.memory_bytes_per_s or 0.0,
            "multiprocessors": device.multiprocessors or 128,
            "island_devices": device.island_devices or self.count("accel_per_node", device.devices_per_node or 8),
            "island_bytes_per_s": self.count("intra_gbs", (device.peer_bytes_per_s or 0) / 1e9) * 1e9,
            "site_bytes_per_s": self.count(
                "inter_gbs_per_accel", (device.inter_node_bytes_per_s or 25e9) / 1e9
            )
            * 1e9,
            "is_fused_attention": float("flash" in row["attn"] or (not row["attn"] and is_recent)),
            "is_fine_scaled": float("rowwise" in row["precision"]),
            **_kept_bytes(is_deepspeed, row["precision"], self.count("zero_stage", 0)),
            "exchanged_bytes": 2.0,
            "keeps_gathered": 1.0,
        }  # fmt: skip

    def _peak(self, bits: str = "") -> float:
        """Declared, of products in so many bits; the row's own if none are named."""
        device = self.device
        assert device is not None
        bits = bits or _bits(self.row)
        half = device.bf16_flops_per_s or device.fp16_flops_per_s or 0.0
        return {"16": half, "8": device.fp8_flops_per_s or half, "4": 2 * (device.fp8_flops_per_s or half)}[
            bits
        ]

    def _best(self, bits: str) -> float:
        """Measured, of the best product."""
        device = self.device
        assert device is not None
        if bits == "16":
            return device.achievable_bf16_flops_per_s or _ACHIEVABLE * self._peak("16")
        eight = device.achievable_fp8_flops_per_s or _ACHIEVABLE * self._peak("8")
        return eight * _FP4_OVER_FP8 if bits == "4" else eight


def _kept_bytes(is_deepspeed: bool, precision: str, store: float) -> Mapping[str, float]:
    """Of a parameter between steps.

    torch's FSDP keeps it and its gradient in fp32. Megatron keeps it in 16 bits, its gradient in fp32 (DeepSpeed in 16 bits,
    with bf16 both), and a master copy beside the two moments of Adam.
    """
    if store >= 3:
        return {"weight_bytes": 4.0, "gradient_bytes": 4.0, "state_bytes": 8.0}
    gradient = (6.0 if precision.lower() == "bf16" else 2.0) if is_deepspeed else 4.0
    return {"weight_bytes": 2.0, "gradient_bytes": gradient, "state_bytes": 12.0}


def _device(name: str) -> Accelerator | None:
    try:
        return accelerator(_ALIASES.get(name, name))
    except UnknownNameError:
        return None
