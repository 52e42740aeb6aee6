"""The weights of a checkpoint as a Hugging Face folder."""

from collections.abc import Mapping
from pathlib import Path

from trimtab.catalog import Network
from trimtab.ledger.manifests import PARAMETERS
from trimtab.plan import network_of
from trimtab.runtime.checkpoint.contents import open_contents
from trimtab.runtime.checkpoint.errors import StateMismatchError
from trimtab.runtime.checkpoint.keyring import Keyring
from trimtab.runtime.checkpoint.loader import CheckpointWeights
from trimtab.runtime.checkpoint.objects import ObjectPath
from trimtab.runtime.data.cache import TOKENIZER_FILE, TOKENS_FOLDER
from trimtab.runtime.data.corpus import cached_tokenizer
from trimtab.runtime.data.errors import DataError
from trimtab.runtime.weights.writing import write_folder
from trimtab.spec import Job
from trimtab.terms import InputError, WeightType

_BESIDE_TOKENIZER = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
"""Files that the transformers library reads beside ``tokenizer.json``."""

_BESIDE_WEIGHTS = ("generation_config.json",)
"""Files of the folder that a run began with that hold after training, too."""


def export_folder(
    checkpoint: Path | ObjectPath,
    job: Job,
    target: Path,
    *,
    run: Path,
    keys: Keyring | None,
    dtype: WeightType,
) -> tuple[Path, ...]:
    """Write a checkpoint's weights as a Hugging Face folder, with what reads text beside them.

    Paths of the job are relative to the working folder.

    Args:
        checkpoint: ``checkpoints/step-<N>``; every byte of a file is checked before it is used.
        job: Of the run.
        target: The folder to make.
        run: The run's folder.
        keys: Of the run; None for a run that has none.
        dtype: Of the weights in the new folder.

    Returns: The files that were written.

    Raises: InputError if the model is a class of the user's own, or something stands at ``target``; NetworkError if
        no family of Hugging Face computes the network; CheckpointError if the weights are damaged, or those of
        another network.
    """
    network = network_of(job)
    if network is None:
        raise InputError(
            f"{job.model.module} is a class of your own; a Hugging Face folder describes a network of the catalog. "
            "Export it with --format safetensors."
        )
    with open_contents(checkpoint, keys) as contents:
        _check_tensors(contents.shapes[PARAMETERS], network, checkpoint.name)
        return write_folder(
            target,
            network,
            CheckpointWeights(contents, PARAMETERS),
            base=job.model.configuration if job.model.folder is not None else None,
            dtype=dtype,
            companions=find_companions(job, run),
        )


def find_companions(job: Job, run: Path) -> dict[str, Path]:
    """Files that belong beside the weights, by the name that they get there: the tokenizer, if it is a file.

    What has gone since the run is left out.
    """
    found = {}
    if (tokenizer := _tokenizer(job, run)) is not None:
        found[TOKENIZER_FILE] = tokenizer
        if tokenizer.name == TOKENIZER_FILE:
            found |= {name: tokenizer.with_name(name) for name in _BESIDE_TOKENIZER}
    if job.model.folder is not None:
        found |= {name: Path(job.model.folder) / name for name in _BESIDE_WEIGHTS}
    return {name: path for name, path in found.items() if path.is_file()}


def _tokenizer(job: Job, run: Path) -> Path | None:
    chosen = job.data.tokenizer
    if chosen == "bytes":
        return None
    if isinstance(chosen, str):
        path = Path(chosen)
        return path / TOKENIZER_FILE if path.is_dir() else path
    try:
        return cached_tokenizer(
            text=job.data.text,
            field=job.data.field,
            tokenizer=chosen.model_dump(),
            held_out=job.data.held_out,
            seed=job.train.seed,
            cache_folder=Path(job.data.cache) if job.data.cache else run.parent / TOKENS_FOLDER,
        )
    except DataError:  # The text has gone; so has the name of its cache.
        return None


def _check_tensors(have: Mapping[str, tuple[int, ...]], network: Network, source: str) -> None:
    want = {tensor.name: tensor.shape for tensor in network.tensors()}
    if have != want:
        raise StateMismatchError(
            source,
            missing=tuple(sorted(want.keys() - have.keys())),
            extra=tuple(sorted(have.keys() - want.keys())),
            mismatched=tuple(
                (name, have[name], want[name])
                for name in sorted(have.keys() & want.keys())
                if have[name] != want[name]
            ),
        )
