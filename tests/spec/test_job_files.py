"""Loading a job file: unknown keys, overrides, variables, bases, everything at once."""

from collections.abc import Callable, Iterator

import pytest

from trimtab.spec import JobFileError, LoadedJob
from trimtab.spec.yaml_documents import MappingValue, read_mapping
from trimtab.terms import ExitCode, Span

Load = Callable[..., LoadedJob]

SAMPLE = """\
run: quickstart
model:
  preset: gpt-3m
  layers: 2
  kv_heads: 2
  context: 512
  dropout: 0.1
data:
  text: python-stdlib
  field: text
  tokenizer: {bpe: {vocab: 512}}
  sequence: 128
  held_out: 0.1
  packing: pad
  cache: tokens
train:
  steps: 200
  batch: 32
  microbatch: 4
  seed: 1
  optimizer: {adamw: {lr: 1e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1}}
  lr_schedule: {cosine: {warmup: 20, floor: 0.1}}
  clip: 1.0
  compute: bf16
  evaluate: {every: 50, batches: 4}
  on_nonfinite: stop
  on_spike: {answer: skip, loss: 5, grad_norm: 7, window: 32, suspect: 4}
orchestration:
  engine: local
  devices: 4
  threads: 1
  price_usd_per_device_hour: 2.5
  storage_usd_per_gb_month: 0.02
  cluster: lab
  runs: runs
  grace: 30s
  environment: {pass: [HOME], set: {MODE: fast}}
parallelism: MESH dp 4
fault_tolerance:
  shares: 4
  on_loss: exact
  replace: true
  checkpoint: {every: 10, keep: 3, keep_best: true}
  balance: 4
  detection: {deadline: 60s, heartbeat: 2s, progress: 60, step: 1h, save: 5min, evaluation: 5min, first_step: 2min, start: 2min, park: 30s, probe: 0.1, compare: 50}
  restarts: {node_loss: 16}
"""

FREE_KEYS = {"MODE"}
"""Names that the user chooses: any spelling is right."""


def keys(tree: MappingValue) -> Iterator[tuple[str, Span]]:
    for key, entry in tree.entries.items():
        if key not in FREE_KEYS:
            yield key, entry.key_span
        if isinstance(entry.value, MappingValue):
            yield from keys(entry.value)


def mutants(key: str) -> set[str]:
    """The key with a letter deleted in the middle, added at the end, changed at the begin."""
    middle = len(key) // 2
    return {key[:middle] + key[middle + 1 :], f"{key}x", f"x{key[1:]}"} - {key}


def replaced(text: str, span: Span, word: str) -> str:
    lines = text.split("\n")
    line = lines[span.line - 1]
    lines[span.line - 1] = line[: span.column - 1] + word + line[span.column - 1 + span.length :]
    return "\n".join(lines)


def test_every_misspelt_key_is_rejected_and_named(load: Load) -> None:
    """S-CFG-02: otherwise a misspelt key leaves its default in force, noticed hours later."""
    load(SAMPLE)
    num_mutants = num_right = 0
    for key, span in keys(read_mapping(SAMPLE, source="run.yaml")):
        for mutant in sorted(mutants(key)):
            with pytest.raises(JobFileError) as caught:
                load(replaced(SAMPLE, span, mutant))
            (problem,) = [problem for problem in caught.value.problems if problem.span.line == span.line]
            assert problem.span.column == span.column
            num_mutants += 1
            num_right += f"Did you mean {key!r}?" in problem.hint
    print(f"{num_right} of {num_mutants} suggestions right")
    assert num_mutants > 150
    assert num_right / num_mutants >= 0.9


@pytest.mark.parametrize(
    ("before", "after", "hint"),
    [
        ("steps: 10", "steps: 10, lr: 1e-3", "'lr' belongs in train.optimizer.adamw or train.optimizer.sgd."),
        ("steps: 10", "steps: 10, learning_rate: 1e-3", "'lr' belongs in train.optimizer"),
        ("steps: 10", "steps: 10, batch_size: 8", "Did you mean 'batch'?"),
        ("steps: 10", "steps: 10, lr-schedule: {}", "Did you mean 'lr_schedule'?"),
        ("steps: 10", "steps: 10, Batch: 3", "Did you mean 'batch'?"),
        ("run: tiny", "run: tiny\ndevices: 4", "'devices' belongs in orchestration."),
        ("run: tiny", "run: tiny\nqqq: 4", "Keys of the job file: run, script, model"),
        ("run: tiny", "run: tiny\nextend: 4", "Did you mean 'extends'?"),
    ],
)
def test_wrong_key_is_told_where_it_belongs(
    load: Load, minimal: str, before: str, after: str, hint: str
) -> None:
    """S-CFG-02: otherwise a right key in the wrong section is only called unknown."""
    with pytest.raises(JobFileError) as caught:
        load(minimal.replace(before, after))
    assert caught.value.exit_code is ExitCode.INPUT_WRONG
    (problem,) = caught.value.problems
    assert hint in problem.hint


def test_all_errors_are_reported_together(load: Load) -> None:
    """Otherwise a user mends one line, waits, and meets the next."""
    text = """\
run: Tiny
model: {preset: gpt-3m, tied: 1}
train: {steps: -1, sedd: 3}
parallelism: |
  MESH dp 2
  SPLIT batch OVER pd
"""
    with pytest.raises(JobFileError) as caught:
        load(text)
    lines = [problem.span.line for problem in caught.value.problems]
    assert lines == [1, 1, 2, 3, 3, 6]


@pytest.mark.parametrize(
    ("spelling", "value"),
    [
        ("true", True), ("True", True), ("TRUE", True), ("yes", True), ("on", True), ("1", True),
        ("false", False), ("False", False), ("FALSE", False), ("no", False), ("off", False), ("0", False),
    ],
)  # fmt: skip
def test_booleans_of_overrides_and_variables(load: Load, minimal: str, spelling: str, value: bool) -> None:
    """S-CFG-04, S-CFG-05: otherwise the text "false" counts as true."""
    loaded = load(minimal, overrides=[f"model.tied={spelling}"])
    assert loaded.job.model.tied is value
    text = minimal.replace("gpt-3m", 'gpt-3m, tied: "${PROFILE:true}"')
    assert load(text, environment={"PROFILE": spelling}).job.model.tied is value
    block = minimal.replace("{preset: gpt-3m}", f"\n  preset: gpt-3m\n  tied: ${{PROFILE:{spelling}}}")
    assert load(block).job.model.tied is value


@pytest.mark.parametrize("spelling", ["maybe", "2", "y", "t", "", "tRUE", "0.0", "[true]", "'true'"])
def test_anything_else_is_no_boolean(load: Load, minimal: str, spelling: str) -> None:
    """S-CFG-04: otherwise --set tied=maybe is taken for true."""
    if spelling == "":
        assert load(minimal, overrides=["model.tied="]).job.model.tied is None
        return
    with pytest.raises(JobFileError, match=r"--set #1:1:12  model.tied is .*; it takes true or false"):
        load(minimal, overrides=[f"model.tied={spelling}"])


@pytest.mark.parametrize("spelling", ["yes", "on", "no", "off", "1", "0", "'true'"])
def test_a_file_takes_true_and_false_only(load: Load, minimal: str, spelling: str) -> None:
    """Otherwise two files of the same meaning read differently."""
    with pytest.raises(JobFileError, match="it takes true or false"):
        load(minimal.replace("gpt-3m", f"gpt-3m, tied: {spelling}"))


def test_scalars_have_the_types_of_their_fields(load: Load, minimal: str) -> None:
    """S-CFG-01: otherwise 1e-5 stays text in the optimizer."""
    text = minimal.replace("steps: 10", "steps: 012, optimizer: {adamw: {lr: 1e-5, eps: 1E-9}}, clip: .5")
    train = load(text).job.train
    assert train.optimizer.adamw is not None
    assert (train.steps, train.optimizer.adamw.lr, train.optimizer.adamw.eps, train.clip) == (
        12,
        1e-5,
        1e-9,
        0.5,
    )
    for wrong in ("1_000", "12:30:00", "2024-01-01", "true", "1.0"):
        with pytest.raises(JobFileError, match=r"train\.steps is .*; it takes a whole number"):
            load(minimal.replace("steps: 10", f"steps: {wrong}"))


def test_text_fields_take_what_yaml_1_1_converts(load: Load, minimal: str) -> None:
    """S-CFG-01: otherwise a column named NO is called False."""
    assert load(minimal.replace("python-stdlib", "a.jsonl, field: NO")).job.data.field == "NO"


def test_durations(load: Load, minimal: str) -> None:
    """Otherwise 5min and 300 mean different things."""
    text = minimal + "fault_tolerance: {detection: {heartbeat: 500ms, save: 5min, progress: 30}}\n"
    detection = load(text).job.fault_tolerance.detection
    assert (detection.heartbeat, detection.save, detection.progress) == (0.5, 300.0, 30.0)


def test_overrides_win_and_say_so(load: Load, minimal: str) -> None:
    """Otherwise nobody knows which of two settings ran."""
    loaded = load(
        minimal,
        overrides=["train.steps=20", "train.steps=30", "data.text=[a.txt, b.txt]", "run=12", "data.field=7"],
    )
    assert loaded.job.train.steps == 30
    assert loaded.job.data.text == ("a.txt", "b.txt")
    assert (loaded.job.run, loaded.job.data.field) == ("12", "7")
    assert loaded.origins["train.steps"] == "--set #2"
    assert loaded.origins["data.text"] == "--set #3"
    assert loaded.origins["model.preset"] == "run.yaml:2"
    assert loaded.origins["train.batch"] == "default"


@pytest.mark.parametrize(
    ("override", "place", "message"),
    [
        ("train.steps=abc", "1:13", "train.steps is the text 'abc'"),
        ("train.stepz=3", "1:7", "unknown key 'stepz' in train"),
        ("run.x=3", "1:1", "run is a mapping with x"),
        ("train.steps", "1:1", "is not an override"),
        ("=3", "1:1", "is not an override"),
        ("a..b=3", "1:1", "is not an override"),
        ("train.optimizer={adamw: {lr: [1}}", "1:32", "expected"),
        ("train.optimizer={adamw: {lr: 1, lr: 2}}", "1:33", "duplicate key 'lr'"),
        ("parallelism=MESH dp 3", "1:13", "needs 3 devices"),
        ("extends=other.yaml", "1:1", "extends stands in a file"),
    ],
)
def test_wrong_overrides_point_at_themselves(
    load: Load, minimal: str, override: str, place: str, message: str
) -> None:
    """Otherwise an error on the command line is shown as one of the file."""
    with pytest.raises(JobFileError) as caught:
        load(minimal, overrides=[override])
    rendered = str(caught.value).splitlines()
    assert rendered[0].startswith(f"--set #1:{place}  ")
    assert message in rendered[0]
    assert override in rendered[1]


def test_variables_are_typed_after_they_are_filled_in(load: Load, minimal: str) -> None:
    """S-CFG-05: otherwise a number from the environment stays text, or text becomes a number."""
    text = minimal.replace("steps: 10", 'steps: "${STEPS}", seed: "${SEED:7}"').replace(
        "tiny", "${NAME}-${STEPS}"
    )
    loaded = load(text, environment={"STEPS": "30", "NAME": "job"})
    assert (loaded.job.run, loaded.job.train.steps, loaded.job.train.seed) == ("job-30", 30, 7)
    assert loaded.origins["train.steps"] == "environment STEPS"
    assert loaded.origins["train.seed"] == "run.yaml:4"
    assert load(minimal.replace("tiny", '"${NAME}"'), environment={"NAME": "12"}).job.run == "12"


def test_missing_variable_is_an_error(load: Load, minimal: str) -> None:
    """Otherwise a run trains on the folder named by an empty text."""
    with pytest.raises(
        JobFileError, match=r"run\.yaml:3:15  the environment variable 'CORPUS' is not set"
    ) as caught:
        load(minimal.replace("python-stdlib", '"${CORPUS}"'), environment={"CORPUS_": "x"})
    assert "Did you mean 'CORPUS_'?" in str(caught.value)


def test_what_a_variable_holds_is_not_read_again(load: Load, minimal: str) -> None:
    """Otherwise one variable could read another that nobody wrote."""
    text = minimal.replace("python-stdlib", '"${A}", field: "$${A}"')
    loaded = load(text, environment={"A": "${B}", "B": "secret"})
    assert (loaded.job.data.text, loaded.job.data.field) == ("${B}", "${A}")
    again = load(loaded.resolved_yaml())
    assert again.job == loaded.job


def test_formulas_with_variables_keep_their_places(load: Load, minimal: str) -> None:
    """Otherwise an error after a long variable points past the line's end."""
    text = minimal + "parallelism: |\n  MESH ${AXIS} 1\n  SPLIT batch OVER ${AXIS}; SPLIT batch OVER q\n"
    with pytest.raises(JobFileError, match=r"run\.yaml:7:46  unknown mesh axis 'q'"):
        load(text, environment={"AXIS": "a_rather_long_name"})


def test_bases_merge_by_key(load: Load, minimal: str) -> None:
    """Otherwise a child must repeat its base, or gets half of two optimizers."""
    base = minimal.replace("steps: 10", "steps: 10, batch: 16, optimizer: {adamw: {lr: 1e-2, eps: 1e-6}}")
    child = "extends: base.yaml\nrun: child\ntrain: {batch: 8, optimizer: {adamw: {lr: 3e-3}}}\n"
    loaded = load(child, files={"base.yaml": base})
    train = loaded.job.train
    assert (loaded.job.run, train.steps, train.batch) == ("child", 10, 8)
    assert train.optimizer.adamw is not None
    assert (train.optimizer.adamw.lr, train.optimizer.adamw.eps) == (3e-3, 1e-6)
    assert loaded.origins["train.steps"] == "base.yaml:4"
    assert loaded.origins["train.batch"] == "run.yaml:3"


def test_bases_replace_choices_lists_and_formulas(load: Load, minimal: str) -> None:
    """Otherwise SGD inherits AdamW's settings, and a list grows."""
    base = (
        minimal.replace("steps: 10", "steps: 10, optimizer: {adamw: {lr: 1e-2}}").replace(
            "python-stdlib", "[a, b, c]"
        )
        + "orchestration: {devices: 2}\nparallelism: |\n  MESH dp 2\n  REDUCE grads OVER dp\n"
    )
    child = "extends: base.yaml\ndata: {text: [d]}\ntrain: {optimizer: {sgd: {momentum: 0.9}}}\nparallelism: MESH site 2\n"
    loaded = load(child, files={"base.yaml": base})
    assert loaded.job.train.optimizer.adamw is None
    assert loaded.job.train.optimizer.sgd is not None
    assert loaded.job.train.optimizer.sgd.lr == 1e-3
    assert loaded.job.data.text == ("d",)
    assert loaded.layout.mesh.axes == (("site", 2),)


@pytest.mark.parametrize("override", ["train.epochs=2", "model.module=shop.nets:Tiny"])
def test_a_later_source_may_choose_the_other_of_two(load: Load, minimal: str, override: str) -> None:
    """Otherwise a base with steps can never be run by epochs."""
    job = load(minimal, overrides=[override]).job
    assert (job.train.steps is None) == override.startswith("train")
    assert (job.model.preset is None) == override.startswith("model")


def test_bases_are_found_beside_the_file_that_names_them(load: Load, minimal: str) -> None:
    """Otherwise a project works from one folder only."""
    files = {
        "jobs/common/base.yaml": "extends: ../root.yaml\ntrain: {seed: 5}\nparallelism: {file: dp.trim}\n",
        "jobs/root.yaml": minimal,
        "jobs/common/dp.trim": "MESH all *\n",
    }
    loaded = load("extends: common/base.yaml\nrun: leaf\n", files=files, source="jobs/run.yaml")
    assert (loaded.job.run, loaded.job.train.seed) == ("leaf", 5)
    assert loaded.layout.mesh.axes == (("all", 1),)
    assert loaded.origins["parallelism"] == "jobs/common/dp.trim"
    assert loaded.job.parallelism.text == "MESH all *\n"


def test_broken_bases_point_at_their_own_lines(load: Load, minimal: str) -> None:
    """S-CFG-07: otherwise the child is blamed for its base."""
    with pytest.raises(JobFileError, match=r"base\.yaml:2:1  a tab"):
        load("extends: base.yaml\n", files={"base.yaml": "run:\n\tx: 1\n"})
    with pytest.raises(JobFileError, match=r"base\.yaml:4:9  unknown key 'stepz'"):
        load(
            "extends: base.yaml\ntrain: {steps: 3}\n", files={"base.yaml": minimal.replace("steps", "stepz")}
        )


def test_circles_of_bases_are_refused(load: Load) -> None:
    """Otherwise reading never ends."""
    files = {"a.yaml": "extends: b.yaml\n", "b.yaml": "extends: a.yaml\n"}
    with pytest.raises(
        JobFileError, match=r"b\.yaml:1:10  files extend each other in a circle: a.yaml -> b.yaml -> a.yaml"
    ):
        load("extends: a.yaml\n", files=files)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (IsADirectoryError(21, "Is a directory"), "Is a directory"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "it is not UTF-8 text"),
    ],
)
def test_unreadable_files_are_named(load: Load, minimal: str, error: Exception, reason: str) -> None:
    """S-CFG-07: otherwise a directory in place of a file ends in a traceback."""

    def read(path: str) -> str:
        raise error

    with pytest.raises(JobFileError, match=rf"run\.yaml:5:21  cannot read 'layout.trim': {reason}"):
        load(minimal + "parallelism: {file: layout.trim}\n", read=read)


def test_formulas_may_stand_on_one_line(load: Load, minimal: str) -> None:
    """Otherwise --set cannot change the parallelism card."""
    loaded = load(
        minimal,
        overrides=[
            "orchestration.devices=4",
            "parallelism=MESH dp 2, site *; REDUCE grads OVER dp, site USING tree",
        ],
    )
    assert loaded.layout.mesh.axes == (("dp", 2), ("site", 2))
    assert load(minimal + "parallelism: ''\n").layout.batch_axes == ("dp",)


@pytest.mark.parametrize(
    "value", ["3", "[MESH dp 1]", "{text: MESH dp 1}", "{file: x.trim, text: x}", "{}", "null"]
)
def test_parallelism_is_text_or_a_file_or_auto(load: Load, minimal: str, value: str) -> None:
    """Otherwise a number counts as no formulas at all."""
    with pytest.raises(JobFileError, match=r"takes formulas as text, \{file: x.trim\}, or auto"):
        load(minimal + f"parallelism: {value}\n")


@pytest.mark.parametrize(
    ("addition", "warning"),
    [
        (
            "fault_tolerance: {checkpoint: {every: 50}}\n",
            "run.yaml:5:32  checkpoint.every is 50; the run of 10 steps",
        ),
        (
            "orchestration: {engine: torchrun}\nfault_tolerance: {checkpoint: {every: off}}\n",
            "run.yaml:6:32  without checkpoints a rank that torchrun loses",
        ),
        (
            "parallelism: |\n  REDUCE grads OVER dp USING tree\n  REDUCE grads OVER dp USING native\n",
            "run.yaml:6:3  this statement has no effect",
        ),
        (
            "orchestration: {environment: {set: {API_KEY: <redacted>}}}\n",
            "the value of API_KEY was not written",
        ),
    ],
)
def test_warnings(load: Load, minimal: str, addition: str, warning: str) -> None:
    """Otherwise a setting without effect goes unnoticed."""
    (found,) = load(minimal + addition).warnings
    assert warning in found
    assert load(minimal).warnings == ()


@pytest.mark.parametrize("batch", ["{from: 2, to: 8}", "[2, 4, 8]", "ramp"])
def test_a_batch_that_grows_is_refused(load: Load, minimal: str, batch: str) -> None:
    """S-CKP-23: a resume would begin the ramp again. A batch is a constant, so samples are steps times batch."""
    with pytest.raises(JobFileError, match=r"train\.batch is .*it takes a whole number"):
        load(minimal.replace("steps: 10", f"steps: 10, batch: {batch}"))
