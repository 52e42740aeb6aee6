"""Settings that cannot hold together: each pair is refused, with both of its places."""

from collections.abc import Callable

import pytest

from trimtab.spec import JobFileError, LoadedJob

Load = Callable[..., LoadedJob]

HEAD = "run: tiny\nmodel: {preset: gpt-3m}\ndata: {text: python-stdlib}\n"

# Name; the file; what the message says; the places named, the first one being the key to change.
CASES = {
    "mesh and devices": (
        HEAD + "train: {steps: 9}\norchestration: {devices: 4}\nparallelism: |\n  MESH dp 3\n",
        "the mesh dp 3 needs 3 devices; orchestration.devices is 4",
        ["7:3", "5:26"],
    ),
    "starred mesh and devices": (
        HEAD + "train: {steps: 9}\norchestration: {devices: 4}\nparallelism: MESH dp 3, site *\n",
        "needs a multiple of 3 devices",
        ["6:14", "5:26"],
    ),
    "shares and batch": (
        HEAD + "train: {steps: 9, batch: 32}\nfault_tolerance: {shares: 5}\n",
        "fault_tolerance.shares is 5, which does not divide train.batch 32",
        ["5:27", "4:26"],
    ),
    "shares and devices": (
        HEAD + "train: {steps: 9}\norchestration: {devices: 4}\nfault_tolerance: {shares: 2}\n",
        "fault_tolerance.shares is 2 for 4 devices",
        ["6:27", "5:26"],
    ),
    "batch and devices": (
        HEAD + "train: {steps: 9, batch: 2}\norchestration: {devices: 4}\n",
        "train.batch is 2 samples for 4 devices",
        ["4:26", "5:26"],
    ),
    "batch and devices without shares": (
        HEAD + "train: {steps: 9, batch: 6}\norchestration: {devices: 4}\nfault_tolerance: {shares: off}\n",
        "with shares off, train.batch is cut into 4 equal parts; 6 cannot be",
        ["4:26", "5:26", "6:27"],
    ),
    "microbatch and share": (
        HEAD + "train: {steps: 9, batch: 8, microbatch: 3}\nfault_tolerance: {shares: 1}\n",
        "train.microbatch is 3, which does not divide the 8 samples of one share",
        ["4:41", "4:26", "5:27"],
    ),
    "steps and epochs": (
        HEAD + "train: {steps: 9, epochs: 2}\n",
        "train.steps is 9 and train.epochs is 2",
        ["4:27", "4:16"],
    ),
    "neither steps nor epochs": (HEAD + "train: {batch: 8}\n", "neither steps nor epochs", ["4:1"]),
    "hosts and devices": (
        HEAD + "train: {steps: 9}\norchestration: {devices: 4, hosts: 3, listen: 'a:1'}\n",
        "orchestration.devices is 4, which 3 hosts cannot share evenly",
        ["5:26", "5:36"],
    ),
    "hosts without an address": (
        HEAD + "train: {steps: 9}\norchestration: {devices: 4, hosts: 2}\n",
        "orchestration.hosts is 2, and nothing says where the others reach the first one",
        ["5:36"],
    ),
    "an address that is none": (
        HEAD + "train: {steps: 9}\norchestration: {devices: 4, hosts: 2, listen: eth0}\n",
        "orchestration.listen is 'eth0'; it takes ADDRESS:PORT",
        ["5:47"],
    ),
    "an address and one host": (
        HEAD + "train: {steps: 9}\norchestration: {listen: 'a:1'}\n",
        "orchestration.listen is for runs of several hosts",
        ["5:25"],
    ),
    "hosts and torchrun": (
        HEAD + "train: {steps: 9}\norchestration: {engine: torchrun, devices: 2, hosts: 2, listen: 'a:1'}\n",
        "orchestration.hosts is 2; under torchrun, torchrun joins the hosts",
        ["5:54", "5:25"],
    ),
    "hosts and a script": (
        "run: tiny\nscript: {file: a.py}\norchestration: {devices: 2, hosts: 2, listen: 'a:1'}\n",
        "orchestration.hosts is 2, and a script runs on one host",
        ["3:36", "2:16"],
    ),
    "blocks and module": (
        HEAD.replace("preset: gpt-3m", "module: a.b:C") + "train: {steps: 9, compile: blocks}\n",
        "train.compile is blocks, which are layers of a network",
        ["4:28", "2:17"],
    ),
    "preset and module": (
        HEAD.replace("gpt-3m", "gpt-3m, module: a.b:C") + "train: {steps: 9}\n",
        "model.preset is gpt-3m and model.module is a.b:C",
        ["2:33", "2:17"],
    ),
    "preset and folder": (
        HEAD.replace("gpt-3m", "gpt-3m, folder: llama, configuration: {}") + "train: {steps: 9}\n",
        "model.preset is gpt-3m and model.folder is llama; only one can be trained",
        ["2:33", "2:17"],
    ),
    "folder and module": (
        HEAD.replace("preset: gpt-3m", "module: a:C, folder: llama, configuration: {}")
        + "train: {steps: 9}\n",
        "model.folder is llama and model.module is a:C; only one can be trained",
        ["2:17", "2:30"],
    ),
    "neither preset nor module": (
        HEAD.replace("preset: gpt-3m", "layers: 3") + "train: {steps: 9}\n",
        "neither a preset, a folder nor a module",
        ["2:1"],
    ),
    "configuration without a folder": (
        HEAD.replace("gpt-3m", "gpt-3m, configuration: {vocab_size: 9}") + "train: {steps: 9}\n",
        "model.configuration is what config.json of model.folder says, and there is no folder",
        ["2:25"],
    ),
    "weights of a folder without a folder": (
        HEAD.replace("gpt-3m", "gpt-3m, weights: folder") + "train: {steps: 9}\n",
        "model.weights is folder, and model.folder names none",
        ["2:34"],
    ),
    "args and folder": (
        HEAD.replace("preset: gpt-3m", "folder: llama, configuration: {}, args: {width: 3}")
        + "train: {steps: 9}\n",
        "model.args are for a class named by model.module",
        ["2:43", "2:17"],
    ),
    "args and preset": (
        HEAD.replace("gpt-3m", "gpt-3m, args: {width: 3}") + "train: {steps: 9}\n",
        "model.args are for a class named by model.module",
        ["2:25", "2:17"],
    ),
    "preset's key and module": (
        HEAD.replace("preset: gpt-3m", "module: a:C, layers: 3") + "train: {steps: 9}\n",
        "model.layers changes a preset",
        ["2:30", "2:17"],
    ),
    "sequence and context": (
        HEAD.replace("gpt-3m", "gpt-3m, context: 64") + "train: {steps: 9}\n",
        "data.sequence is 128 tokens; model.context allows 64",
        ["2:34"],
    ),
    "vocabulary and tokenizer": (
        HEAD.replace("gpt-3m", "gpt-3m, vocab: 500").replace(
            "stdlib", "stdlib, tokenizer: {bpe: {vocab: 512}}"
        )
        + "train: {steps: 9}\n",
        "model.vocab is 500; the tokenizer gives 512",
        ["2:32", "3:54"],
    ),
    "vocabulary and bytes": (
        HEAD.replace("gpt-3m", "gpt-3m, vocab: 100") + "train: {steps: 9}\n",
        "model.vocab is 100; the tokenizer gives 256",
        ["2:32"],
    ),
    "warm-up and steps": (
        HEAD + "train: {steps: 9, lr_schedule: {linear: {warmup: 10}}}\n",
        "the warm-up of 10 steps is longer than the run of 9",
        ["4:50", "4:16"],
    ),
    "nesterov and momentum": (
        HEAD + "train: {steps: 9, optimizer: {sgd: {nesterov: true}}}\n",
        "nesterov looks ahead along the momentum, and momentum is 0",
        ["4:47"],
    ),
    "exact and shares off": (
        HEAD + "train: {steps: 9}\nfault_tolerance: {shares: off, on_loss: exact}\n",
        "on_loss exact promises the same bits",
        ["5:41", "5:27"],
    ),
    "redo and shares off": (
        HEAD + "train: {steps: 9}\nfault_tolerance: {shares: off, on_loss: redo}\n",
        "on_loss redo promises the same bits",
        ["5:41", "5:27"],
    ),
    "exact and torchrun": (
        HEAD + "train: {steps: 9}\norchestration: {engine: torchrun}\nfault_tolerance: {on_loss: exact}\n",
        "on_loss exact survives inside the step; torchrun kills every rank",
        ["6:28", "5:25"],
    ),
    "rescale and torchrun": (
        HEAD + "train: {steps: 9}\norchestration: {engine: torchrun}\nfault_tolerance: {on_loss: rescale}\n",
        "on_loss rescale survives inside the step",
        ["6:28", "5:25"],
    ),
    "replace and torchrun": (
        HEAD + "train: {steps: 9}\norchestration: {engine: torchrun}\nfault_tolerance: {replace: true}\n",
        "under torchrun only torchrun starts processes",
        ["6:28", "5:25"],
    ),
    "rollback and no checkpoints": (
        HEAD + "train: {steps: 9}\nfault_tolerance: {on_loss: rollback, checkpoint: {every: off}}\n",
        "on_loss rollback goes back to a checkpoint",
        ["5:28", "5:58"],
    ),
    "on_nonfinite and no checkpoints": (
        HEAD + "train: {steps: 9, on_nonfinite: rollback}\nfault_tolerance: {checkpoint: {every: off}}\n",
        "on_nonfinite rollback goes back to a checkpoint",
        ["4:33", "5:39"],
    ),
    "keep_best and no checkpoints": (
        HEAD
        + "train: {steps: 9, evaluate: {every: 3}}\nfault_tolerance: {checkpoint: {every: off, keep_best: true}}\n",
        "keep_best keeps a checkpoint",
        ["5:55", "5:39"],
    ),
    "keep_best and no evaluation": (
        HEAD + "train: {steps: 9}\nfault_tolerance: {checkpoint: {keep_best: true}}\n",
        "keep_best compares evaluations",
        ["5:43"],
    ),
    "evaluation and nothing held out": (
        HEAD.replace("stdlib", "stdlib, held_out: 0") + "train: {steps: 9, evaluate: {every: 3}}\n",
        "train.evaluate scores the held-out text",
        ["4:37", "3:39"],
    ),
    "probe and shares off": (
        HEAD
        + "train: {steps: 9}\nfault_tolerance: {shares: off, on_loss: same_batch, detection: {probe: 0.1}}\n",
        "detection.probe computes shares again, and fault_tolerance.shares is off",
        ["5:72", "5:27"],
    ),
    "on_spike and no checkpoints": (
        HEAD
        + "train: {steps: 9, on_spike: {answer: rollback}}\nfault_tolerance: {checkpoint: {every: off}}\n",
        "on_spike rollback goes back to a checkpoint",
        ["4:38", "5:39"],
    ),
    "heartbeat and progress": (
        HEAD + "train: {steps: 9}\nfault_tolerance: {detection: {heartbeat: 9s, progress: 3s}}\n",
        "detection.heartbeat is 9.00 s and detection.progress is 3.00 s",
        ["5:42", "5:56"],
    ),
    "progress and first step": (
        HEAD + "train: {steps: 9}\nfault_tolerance: {detection: {first_step: 20s}}\n",
        "the first step would have less time than the others",
        ["5:43"],
    ),
    "variable handed on and set": (
        HEAD + "train: {steps: 9}\norchestration: {environment: {pass: [A], set: {A: x}}}\n",
        "the variable A is both handed on and set",
        ["5:31", "5:51"],
    ),
    "split axis and sum": (
        HEAD
        + "train: {steps: 9}\norchestration: {devices: 4}\nparallelism: |\n  MESH dp 2, site 2\n  REDUCE grads OVER dp\n",
        "the batch is split over site, but gradients are not summed over it",
        ["8:3"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_contradiction_is_refused_with_both_places(load: Load, name: str) -> None:
    """S-CFG-06: otherwise one of two settings wins in silence."""
    text, message, places = CASES[name]
    with pytest.raises(JobFileError) as caught:
        load(text)
    (problem,) = caught.value.problems
    assert message in problem.message
    found = [problem.span, *(place.span for place in problem.others)]
    assert [f"{span.line}:{span.column}" for span in found] == places


def test_there_are_enough_contradictions() -> None:
    """S-CFG-06 asks for fifteen."""
    assert len(CASES) >= 15


def test_contradictions_across_sources_name_each_source(load: Load) -> None:
    """S-CFG-06: otherwise an override that breaks the file is blamed on the file."""
    text = HEAD + "train: {steps: 9, batch: 32}\n"
    with pytest.raises(JobFileError) as caught:
        load(text, overrides=["fault_tolerance.shares=5"])
    message = str(caught.value)
    assert message.startswith("--set #1:1:24  fault_tolerance.shares is 5")
    assert "run.yaml:4:26  train.batch is set here" in message


def test_absurd_batch_is_refused_at_once(load: Load) -> None:
    """Otherwise a key held down too long is factored for hours."""
    with pytest.raises(JobFileError, match="it takes a whole number from 1 to 16777216"):
        load(f"{HEAD}train: {{steps: 9, batch: {10**50}}}\n")


def test_nearest_valid_numbers_are_named(load: Load) -> None:
    """S-NUM-13: otherwise a user must factor the batch by hand."""
    with pytest.raises(JobFileError, match="Nearest microbatches: 2 or 4"):
        load(HEAD + "train: {steps: 9, batch: 8, microbatch: 3}\nfault_tolerance: {shares: 1}\n")
    with pytest.raises(JobFileError, match="Nearest shares: 4 or 8"):
        load(HEAD + "train: {steps: 9, batch: 32}\nfault_tolerance: {shares: 5}\n")
    with pytest.raises(JobFileError, match="Nearest batches: 4 and 8"):
        load(
            HEAD
            + "train: {steps: 9, batch: 6}\norchestration: {devices: 4}\nfault_tolerance: {shares: off}\n"
        )


@pytest.mark.parametrize(
    "cards",
    [
        "fault_tolerance: {on_loss: exact}",
        "fault_tolerance: {on_loss: redo}",
        "fault_tolerance: {on_loss: rollback}",
        "fault_tolerance: {on_loss: same_batch}",
        "fault_tolerance: {on_loss: rescale}",
        "fault_tolerance: {on_loss: same_batch, shares: off}",
        "fault_tolerance: {on_loss: rescale, shares: off}",
        "orchestration: {engine: torchrun}\nfault_tolerance: {on_loss: rollback}",
        "orchestration: {engine: torchrun}",
        "orchestration: {engine: torchrun}\nfault_tolerance: {shares: off}",
    ],
)
def test_what_the_layout_can_give_is_accepted(load: Load, cards: str) -> None:
    """Otherwise the rules refuse more than they must."""
    assert load(f"{HEAD}train: {{steps: 9}}\n{cards}\n").warnings == ()
