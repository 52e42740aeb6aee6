"""The resolved file: complete, reloadable, without secrets."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.spec import Job, LoadedJob, load_job
from trimtab.spec.constants import resolve_constants
from trimtab.spec.resolved import digest, is_secret, write_yaml

Load = Callable[..., LoadedJob]

BASIC = {"run": "tiny", "data": {"text": "python-stdlib"}, "train": {"steps": 10}}


def reload(text: str) -> Job:
    return load_job(text, source="resolved.yaml", read=lambda path: pytest.fail(f"read {path}")).job


def test_reload_gives_the_same_job_and_digest(load: Load, minimal: str) -> None:
    """S-CFG-09: otherwise a rerun from the stored file is another run."""
    text = minimal + "parallelism: |\n  MESH dp 4   -- all\n\n  REDUCE grads OVER dp USING tree\n"
    first = load(text, overrides=["orchestration.devices=4", "train.seed=${SEED}"], environment={"SEED": "3"})
    again = load(first.resolved_yaml(), source="resolved.yaml")
    assert again.job == first.job
    assert again.digest() == first.digest()
    assert again.program == first.program
    assert load(again.resolved_yaml()).digest() == first.digest()


def test_digest_differs_if_the_run_does(load: Load, minimal: str) -> None:
    """S-CFG-09: otherwise two runs pass for one."""
    digests = {load(minimal, overrides=[f"train.seed={seed}"]).digest() for seed in range(3)}
    assert len(digests) == 3


def test_every_value_stands_with_its_origin(load: Load, minimal: str) -> None:
    """S-CFG-09: otherwise nobody can tell a choice from a default."""
    loaded = load(
        minimal + "orchestration:\n  devices: ${N}\n", overrides=["train.batch=8"], environment={"N": "2"}
    )
    lines = loaded.resolved_yaml().splitlines()
    assert "run: tiny  # run.yaml:1" in lines
    assert "  batch: 8  # --set #1" in lines
    assert "  devices: 2  # environment N" in lines
    assert "  seed: 0  # default" in lines
    assert "  shares: 4  # auto (default)" in lines
    values = [line for line in lines[1:] if not line.endswith(":")]
    assert all("  # " in line for line in values)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET", "DB_PASSWORD", "OPENAI_API_KEY", "api_key", "MY_CREDENTIALS_FILE"]
)
def test_secrets_are_not_written(load: Load, minimal: str, name: str) -> None:
    """S-CFG-09: otherwise a run's folder, which people share, holds passwords."""
    text = minimal + f"orchestration: {{environment: {{set: {{{name}: hunter2, MODE: fast}}}}}}\n"
    loaded = load(text)
    assert loaded.job.orchestration.environment.assigned[name] == "hunter2"
    resolved = loaded.resolved_yaml()
    assert "hunter2" not in resolved
    assert "MODE: fast" in resolved
    again = load(resolved)
    assert again.digest() == loaded.digest()
    assert any(name in warning for warning in again.warnings)


@pytest.mark.parametrize(
    "name", ["NUM_MEMORY_TOKENS", "TOKENIZERS_PARALLELISM", "SECRETARY", "KEY", "PASSWORD_POLICY_URL"]
)
def test_other_variables_are_written(name: str) -> None:
    """Otherwise a stored run lacks settings that it needs."""
    assert not is_secret(name)


def test_arguments_that_sound_secret_are_written(load: Load) -> None:
    """Otherwise a network's own settings vanish from the stored run."""
    text = (
        "run: tiny\nmodel: {module: 'a:B', args: {use_cls_token: true, num_memory_tokens: 4}}\n"
        "data: {text: python-stdlib}\ntrain: {steps: 1}\n"
    )
    resolved = load(text).resolved_yaml()
    assert "use_cls_token: true" in resolved
    assert "num_memory_tokens: 4" in resolved


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), plain, max_size=4))
def test_any_argument_reads_back(args: dict[str, Any]) -> None:
    """S-CFG-09: otherwise text such as "no", "1e5" or "${X}" comes back as something else."""
    job = resolve_constants(Job.model_validate({**BASIC, "model": {"module": "a:B", "args": args}}))
    again = reload(write_yaml(job, {}))
    assert again.model.args == args
    assert digest(again) == digest(job)


def test_digest_is_over_plain_values() -> None:
    """Otherwise another Python or another order of keys changes it."""
    job = Job.model_validate({**BASIC, "model": {"preset": "gpt-3m"}})
    shuffled = Job.model_validate(json.loads(json.dumps({"model": {"preset": "gpt-3m"}, **BASIC})))
    assert digest(job) == digest(shuffled)
    assert len(digest(job)) == 64


def test_a_preset_is_written_out(load: Load, minimal: str) -> None:
    """Otherwise a release that changes a preset changes the strategy of a run that goes on under it."""
    first = load(f"{minimal}orchestration: {{devices: 4}}\nparallelism: USE 'zero2'\n")
    written = first.resolved_yaml()
    assert "USE" not in written
    assert "STORE grads, states OVER dp" in written
    again = load(written)
    assert again.program == first.program
    assert again.digest() == first.digest()
