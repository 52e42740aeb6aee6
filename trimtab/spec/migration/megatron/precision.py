"""The type of matrix products, for all layers and for single ones."""

from collections.abc import Iterator

from trimtab.spec.migration.megatron.draft import Draft
from trimtab.spec.migration.megatron.topics import topic_of

_COMPUTE = "train.compute"
_DETAILS = "fp8_details"
_FORMATS = ("--fp8-format", "--fp8-hybrid", "--fp8-e4m3")
_ENDS, _AT_START, _AT_END = (
    "--first-last-layers-bf16",
    "--num-layers-at-start-in-bf16",
    "--num-layers-at-end-in-bf16",
)


def read_precision(draft: Draft, layers: int) -> None:
    """Set the type of matrix products, and state where it is another one."""
    if "--fp16" in draft.flags:
        draft.set(_COMPUTE, "bf16")
        draft.change(
            "--fp16", _COMPUTE, reason="fp16 needs a scaled loss, bf16 does not; both keep weights in fp32"
        )
    if "--bf16" in draft.flags:
        draft.set(_COMPUTE, "bf16")
        draft.carry("--bf16", _COMPUTE)
    _eighths(draft, layers)


def _eighths(draft: Draft, layers: int) -> None:
    if not any(name in draft.flags for name in _FORMATS):
        for name in (_ENDS, _AT_START, _AT_END, *_details(draft)):
            draft.drop(name, "no layer computes in fp8")
        return
    statement = draft.state("COMPUTE layers IN fp8")
    for name in _FORMATS:
        reason = "the type is said; which of its two forms each tensor takes is not"
        draft.change(name, statement, reason=reason)
    if _ENDS in draft.flags:
        _keep_ends(draft, layers)
    else:
        for name in (_AT_START, _AT_END):
            draft.drop(name, f"only with {_ENDS}")


def _details(draft: Draft) -> Iterator[str]:
    """The flags that say how fp8 keeps its scales."""
    for flag in draft.flags:
        topic = topic_of(flag.name)
        if topic is not None and topic.name == _DETAILS:
            yield flag.name


def _keep_ends(draft: Draft, layers: int) -> None:
    start, end = draft.flags.whole(_AT_START), draft.flags.whole(_AT_END)
    first, last = (1 if start is None else start), (1 if end is None else end)
    spans = [f"layer < {first}"] * (first > 0) + [f"layer >= {layers - last}"] * (last > 0)
    if not spans:
        for name in (_ENDS, _AT_START, _AT_END):
            draft.drop(name, "no layer at either end")
        return
    statement = draft.state(f"COMPUTE layers WHERE {' OR '.join(spans)} IN bf16")
    for name in (_ENDS, _AT_START, _AT_END):
        draft.carry(name, statement)
