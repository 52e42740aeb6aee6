"""The verb ``init``: a job file that runs, to begin with."""

from pathlib import Path

from trimtab.app.output import print_document
from trimtab.terms import ExitCode, InputError

_FILE = "job.yaml"

TEMPLATE = """\
# A Trimtab job: what to train, and three cards that say how. `trimtab run job.yaml` trains it,
# `trimtab explain job.yaml` says what it will do, `trimtab schema` lists every key.
run: first

# The network: a preset of the catalog, changed by keys such as layers and embed; or module: package:Class.
model: {preset: gpt-3m}

# The text: python-stdlib, a file, a folder, a glob, or a list of them.
data: {text: python-stdlib, tokenizer: bytes, sequence: 128}

train:
  steps: 50
  batch: 16                         # samples of one step, over all devices
  optimizer: {adamw: {lr: 1e-3}}
  lr_schedule: {cosine: {warmup: 10}}

# Card 1: what runs where, and what it costs.
orchestration: {devices: 2}         # price_usd_per_device_hour: 2.0 shows dollars

# Card 2: who computes what. '*' takes all devices there are.
parallelism: |
  MESH dp *
  SPLIT batch OVER dp
  REDUCE grads OVER dp USING tree

# Card 3: what happens when something dies, and when state is saved.
fault_tolerance: {on_loss: auto, checkpoint: {every: 25}}
"""


def write_first_job(folder: Path, *, is_json: bool) -> int:
    """Write ``job.yaml`` into a folder, made if it is not there; an existing file is never replaced.

    Raises: InputError if there is one, or the system refuses.
    """
    target = folder / _FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise InputError(f"{target} is already there; choose another folder") from None
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from error
    if is_json:
        print_document({"file": str(target)})
    else:
        print(f"wrote {target}; next: trimtab run {target}")
    return ExitCode.DONE
