"""The text to train on and its tokenizer: what Megatron-LM reads is made of them, and cannot be read back."""

import re

from trimtab.spec.migration.megatron.draft import Draft

_PATHS = ("--data-path", "--train-data-path")
_PLACEHOLDER = "text.jsonl"
_TOKENIZER = "tokenizer.json"


def read_text(draft: Draft) -> None:
    """Set the text, its tokenizer and the part that is held out."""
    _text(draft)
    _tokenizer(draft)
    _held_out(draft)


def _text(draft: Draft) -> None:
    if "--mock-data" in draft.flags:
        draft.set("data.text", "python-stdlib")
        draft.change("--mock-data", "data.text", reason="a text that every machine has stands for it")
    paths = [path for name in _PATHS for path in _paths(draft.flags.texts(name))]
    if paths and "--mock-data" not in draft.flags:
        draft.set("data.text", paths[0] if len(paths) == 1 else paths)
    elif "--mock-data" not in draft.flags:
        draft.set("data.text", _PLACEHOLDER)
        draft.warnings.append(
            f"no path of a text was found; write it in data.text, where {_PLACEHOLDER} stands for it"
        )
    has_weights = any(_is_weight(word) for name in _PATHS for word in draft.flags.texts(name))
    weights = "; the weights of the mixture are left out" if has_weights else ""
    for name in _PATHS:
        reason = f"text, .jsonl and .parquet are read, no .bin and .idx: name what they were made of{weights}"
        draft.change(name, "data.text", reason=reason)


def _paths(words: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(word for word in words if word and not _is_weight(word) and "<" not in word))


def _is_weight(word: str) -> bool:
    return re.fullmatch(r"[0-9]*\.?[0-9]+(e-?[0-9]+)?", word) is not None


def _tokenizer(draft: Draft) -> None:
    model = draft.flags.text("--tokenizer-model") or draft.flags.text("--tokenizer-name-or-path")
    kind = draft.flags.text("--tokenizer-type") or ""
    names = (
        "--tokenizer-type",
        "--tokenizer-model",
        "--tokenizer-name-or-path",
        "--vocab-file",
        "--merge-file",
    )
    if "Null" in kind or ("--mock-data" in draft.flags and not model):
        draft.set("data.tokenizer", "bytes")
        for name in names:
            draft.change(name, "data.tokenizer", reason="bytes stand for the numbers that it would draw")
        return
    is_file = model is not None and model.endswith(_TOKENIZER)
    draft.set("data.tokenizer", model if is_file else _TOKENIZER)
    for name in names:
        if is_file and draft.flags.text(name) == model:
            draft.carry(name, "data.tokenizer")
        else:
            draft.change(
                name, "data.tokenizer", reason="a tokenizer.json is read: export it as one, and name it here"
            )


def _held_out(draft: Draft) -> None:
    """The share of text for validation and testing; 0.03 is Megatron's where text is split and nothing said."""
    numbers = [
        float(part) for part in re.findall(r"[0-9.]+", draft.flags.text("--split") or "") if _is_weight(part)
    ]
    total = sum(numbers)
    if not numbers or total <= 0:
        draft.refuse("--split", "parts are numbers such as 99,1,0")
        return
    fraction = float(f"{1 - numbers[0] / total:.6g}")
    draft.set("data.held_out", min(0.99, fraction))
    draft.change(
        "--split",
        "data.held_out",
        reason="what is not trained on is held out for evaluation, the test part too",
    )
