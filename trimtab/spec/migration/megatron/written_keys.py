"""Keys of a job as flags of Megatron-LM."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from trimtab.spec.migration.keys import Key, keys_of, text_of
from trimtab.spec.migration.settings import Fate
from trimtab.spec.migration.sheets import Sheet
from trimtab.spec.migration.targets import Exportable

_FLAGS: Mapping[str, str] = {
    "data.sequence": "--seq-length",
    "data.cache": "--data-cache-path",
    "train.steps": "--train-iters",
    "train.batch": "--global-batch-size",
    "train.microbatch": "--micro-batch-size",
    "train.seed": "--seed",
    "train.optimizer.adamw.lr": "--lr",
    "train.optimizer.adamw.eps": "--adam-eps",
    "train.optimizer.adamw.weight_decay": "--weight-decay",
    "train.optimizer.sgd.lr": "--lr",
    "train.optimizer.sgd.momentum": "--sgd-momentum",
    "train.optimizer.sgd.weight_decay": "--weight-decay",
}
"""Keys whose value stands behind a flag as it is."""

_LEFT: Mapping[str, tuple[Fate, str]] = {
    "run": (Fate.IRRELEVANT, "a run has no name there"),
    "data.field": (Fate.IRRELEVANT, "its tool that makes .bin and .idx files takes it: --json-keys"),
    "train.epochs": (Fate.IMPOSSIBLE, "a training is so many steps or samples there"),
    "train.optimizer.sgd.nesterov": (Fate.IMPOSSIBLE, "its sgd has plain momentum"),
    "train.on_nonfinite": (Fate.IMPOSSIBLE, "a loss that is not finite ends the run there"),
    "train.compile": (Fate.IMPOSSIBLE, "blocks are not compiled there, but fused by kernels of its own"),
    "train.on_spike": (Fate.IMPOSSIBLE, "spikes are not answered there"),
    "orchestration.engine": (Fate.IRRELEVANT, "torchrun starts the ranks there"),
    "orchestration.threads": (Fate.IRRELEVANT, "set OMP_NUM_THREADS"),
    "orchestration.price_usd_per_device_hour": (Fate.IMPOSSIBLE, "there is no account of time and money"),
    "orchestration.storage_usd_per_gb_month": (Fate.IMPOSSIBLE, "there is no account of time and money"),
    "orchestration.hosts": (Fate.IRRELEVANT, "torchrun's --nnodes"),
    "orchestration.listen": (Fate.IRRELEVANT, "torchrun's --rdzv-endpoint"),
    "orchestration.interface": (Fate.IRRELEVANT, "set NCCL_SOCKET_IFNAME"),
    "orchestration.token_file": (Fate.IMPOSSIBLE, "who reaches torchrun's endpoint may join there"),
    "orchestration.unreachable": (Fate.IMPOSSIBLE, "a host that is lost ends all there"),
    "fault_tolerance.digest_every": (Fate.IMPOSSIBLE, "weights are not hashed there"),
    "fault_tolerance.snapshots": (Fate.IMPOSSIBLE, "ranks hold no copies of what others hold there"),
    "orchestration.cluster": (Fate.IMPOSSIBLE, "nothing there looks at a cluster before a run"),
    "orchestration.environment.pass": (Fate.IRRELEVANT, "ranks get the whole environment there"),
    "fault_tolerance.shares": (Fate.IMPOSSIBLE, "gradients are added in the order of the devices there"),
    "fault_tolerance.on_loss": (
        Fate.IMPOSSIBLE,
        "when a rank dies all start again at the newest checkpoint there",
    ),
    "fault_tolerance.replace": (Fate.IMPOSSIBLE, "torchrun starts all ranks again, none alone"),
    "fault_tolerance.balance": (Fate.IMPOSSIBLE, "all ranks compute equal parts there"),
    "fault_tolerance.checkpoint.keep": (Fate.IMPOSSIBLE, "all checkpoints are kept there"),
    "fault_tolerance.checkpoint.keep_every": (Fate.IMPOSSIBLE, "all checkpoints are kept there"),
    "fault_tolerance.checkpoint.to": (Fate.IRRELEVANT, "a folder of each start there: --save"),
    "fault_tolerance.checkpoint.sign": (Fate.IMPOSSIBLE, "checkpoints are not signed there"),
    "fault_tolerance.checkpoint.encrypt": (Fate.IMPOSSIBLE, "checkpoints are not encrypted there"),
    "fault_tolerance.checkpoint.keep_best": (Fate.IMPOSSIBLE, "checkpoints are not compared there"),
    "fault_tolerance.detection": (
        Fate.IMPOSSIBLE,
        "one time-out holds for every wait there: --distributed-timeout-minutes",
    ),
    "fault_tolerance.restarts.node_loss": (Fate.IRRELEVANT, "torchrun's to count there: --max-restarts"),
    "fault_tolerance.restarts.user_error": (Fate.IRRELEVANT, "torchrun's to count there: --max-restarts"),
    "fault_tolerance.restarts.forgiven_after": (
        Fate.IMPOSSIBLE,
        "restarts are counted from the beginning there",
    ),
    "fault_tolerance.restarts.script": (Fate.IRRELEVANT, "torchrun's to count there: --max-restarts"),
}
"""Keys, or sections of them, without a flag, and why."""

_SCHEDULES = {
    "constant": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "inverse_sqrt": "inverse-square-root",
}


def write_keys(sheet: Sheet, exportable: Exportable) -> None:
    """Every key that was written, or that a flag says, with its flags or why there is none; networks elsewhere."""
    for key in keys_of(exportable.loaded):
        path = key.path
        writer = next(
            (found for start, found in _WRITERS if path == start or path.startswith(f"{start}.")), None
        )
        if path.startswith("model."):
            continue
        if path in _FLAGS:
            sheet.carry(path, key.text, f"{_FLAGS[path]} {_words(key.value)}")
        elif writer is not None:
            writer(sheet, key)
        elif not key.is_default:
            _tell(sheet, path, key.value, *_left(path))


def _left(path: str) -> tuple[Fate, str]:
    """Why a key has no flag: as it stands, or its section."""
    return _LEFT[path] if path in _LEFT else _LEFT[path.rpartition(".")[0]]


def _tell(sheet: Sheet, path: str, value: Any, fate: Fate, reason: str) -> None:
    if fate is Fate.IMPOSSIBLE:
        sheet.refuse(path, text_of(value), reason)
    else:
        sheet.drop(path, text_of(value), reason)


def _words(value: Any) -> str:
    """The value as words of a shell."""
    if isinstance(value, list | tuple):
        return " ".join(_words(item) for item in value)
    return shlex.quote(text_of(value))


_Writer = Callable[[Sheet, Key], None]


def _text_of_training(sheet: Sheet, key: Key) -> None:
    reason = (
        "make .bin and .idx files of the text with tools/preprocess_data.py, and name their common beginning"
    )
    sheet.change(key.path, key.text, f"--data-path {_words(key.value)}", reason=reason)


def _tokenizer(sheet: Sheet, key: Key) -> None:
    if key.path != "data.tokenizer":
        sheet.refuse(key.path, key.text, "a tokenizer is trained before, not by the run")
    elif key.value == "bytes":
        sheet.refuse(key.path, key.text, "there is no tokenizer of bytes")
    else:
        folder = key.text.rpartition("/")[0] or "."
        reason = "the folder of tokenizer.json, which must hold a tokenizer of transformers"
        sheet.change(
            key.path,
            key.text,
            "--tokenizer-type HuggingFaceTokenizer",
            f"--tokenizer-model {shlex.quote(folder)}",
            reason=reason,
        )


def _held_out(sheet: Sheet, key: Key) -> None:
    parts = round(key.value * 10_000)
    reason = "by position in the text, not by document"
    sheet.change(key.path, key.text, f"--split {10_000 - parts},{parts},0", reason=reason)


def _packing(sheet: Sheet, key: Key) -> None:
    if key.value == "pack":
        sheet.drop(key.path, key.text, "documents one after the other, as there")
    else:
        sheet.refuse(key.path, key.text, "documents follow one another in a sample there")


def _optimizer(sheet: Sheet, key: Key) -> None:
    if key.path.endswith("adamw.betas"):
        sheet.carry(
            key.path,
            key.text,
            f"--adam-beta1 {text_of(key.value[0])}",
            f"--adam-beta2 {text_of(key.value[1])}",
        )
    elif not key.is_default:
        _tell(sheet, key.path, key.value, *_LEFT[key.path])


def _lr_schedule(sheet: Sheet, key: Key) -> None:
    name, _, setting = key.path.removeprefix("train.lr_schedule.").partition(".")
    if name not in _SCHEDULES:
        reason = "courses of the rate there are constant, linear, cosine and inverse square root"
        sheet.refuse(key.path, key.text, reason)
    elif setting == "warmup":
        sheet.carry(
            key.path, key.text, f"--lr-decay-style {_SCHEDULES[name]}", f"--lr-warmup-iters {key.text}"
        )
    else:
        rate = getattr(key.job.train.optimizer.chosen, "lr", 0.0) * key.value
        sheet.change(key.path, key.text, f"--min-lr {text_of(rate)}", reason="as a rate, not as a fraction")


def _clip(sheet: Sheet, key: Key) -> None:
    sheet.carry(key.path, key.text, f"--clip-grad {0 if key.value == 'off' else key.text}")


def _compute(sheet: Sheet, key: Key) -> None:
    if key.value == "bf16":
        sheet.carry(key.path, key.text, "--bf16")
    else:
        sheet.drop(key.path, key.text, "fp32, as without a flag")


def _evaluate(sheet: Sheet, key: Key) -> None:
    every = key.job.train.evaluate.every
    if every:
        flag = "--eval-interval" if key.path.endswith("every") else "--eval-iters"
        sheet.carry(key.path, key.text, f"{flag} {key.text}")
    elif not key.is_default:
        sheet.refuse(key.path, key.text, "text is scored every so many steps there, at least 1")


def _devices(sheet: Sheet, key: Key) -> None:
    sheet.drop(key.path, key.text, "the launcher starts one rank a device: see `trimtab export torchrun`")


def _grace(sheet: Sheet, key: Key) -> None:
    sheet.change(
        key.path,
        key.text,
        "--exit-signal-handler",
        reason="SIGTERM saves and ends; how long that may take is not said",
    )


def _environment(sheet: Sheet, key: Key) -> None:
    if key.path.startswith("orchestration.environment.set."):
        name = key.path.rpartition(".")[2]
        sheet.drop(key.path, key.text, f"exported before the launch: {name}")


def _runs(sheet: Sheet, key: Key) -> None:
    if key.job.fault_tolerance.checkpoint.every == "off":
        sheet.drop(key.path, key.text, "nothing is saved")
    else:
        sheet.carry(key.path, key.text, f"--save {_words(key.value)}")


def _checkpoint(sheet: Sheet, key: Key) -> None:
    if isinstance(key.value, int):
        sheet.carry(key.path, key.text, f"--save-interval {key.value}")
    elif key.value == "adaptive":
        sheet.change(
            key.path,
            key.text,
            "--save-interval 1000",
            reason="an interval must be said there; 1000 stands for it",
        )
    else:
        sheet.drop(key.path, key.text, "without --save nothing is saved there")


_WRITERS: tuple[tuple[str, _Writer], ...] = (
    ("data.text", _text_of_training),
    ("data.tokenizer", _tokenizer),
    ("data.held_out", _held_out),
    ("data.packing", _packing),
    ("train.optimizer", _optimizer),
    ("train.lr_schedule", _lr_schedule),
    ("train.clip", _clip),
    ("train.compute", _compute),
    ("train.evaluate", _evaluate),
    ("orchestration.devices", _devices),
    ("orchestration.runs", _runs),
    ("orchestration.grace", _grace),
    ("orchestration.environment.set", _environment),
    ("fault_tolerance.checkpoint.every", _checkpoint),
)
"""Keys, or sections of them, that need more than a flag with their value."""
