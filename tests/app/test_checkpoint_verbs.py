import json
import pickle
import warnings
from contextlib import closing

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.numpy import load_file

from trimtab.catalog import network
from trimtab.ledger.manifests import seal
from trimtab.policy.retention import Retention
from trimtab.runtime.checkpoint.keyring import open_keyring
from trimtab.runtime.checkpoint.saver import Saver
from trimtab.runtime.checkpoint.signing import Key


def test_what_is_saved_is_listed(cli, written_run):
    """Oldest first, torn and unfinished ones with their reason."""
    run = written_run().checkpoint(2).checkpoint(10)
    (run.folder / "checkpoints" / "step-12.tmp-77").mkdir()
    (run.folder / "checkpoints" / "step-10" / "model.safetensors").unlink()
    rows = cli("checkpoints", "ls", "quick-1", "--json").document["checkpoints"]
    assert [(row["name"], row["is_complete"]) for row in rows] == [
        ("step-2", True),
        ("step-10", False),
        ("step-12.tmp-77", False),
    ]
    assert "model.safetensors" in rows[1]["error"]
    assert "step-2 " in cli("checkpoints", "ls", "quick-1").out


def test_a_run_without_checkpoints_has_an_empty_list(cli, written_run):
    """Which is an answer, not an error."""
    written_run()
    answer = cli("checkpoints", "ls", "quick-1", "--json")
    assert (answer.code, answer.document["checkpoints"]) == (0, [])


def test_whole_checkpoints_verify(cli, written_run):
    """Exit code 0 may be trusted by a script that deletes the originals."""
    written_run().checkpoint(2).checkpoint(4)
    answer = cli("checkpoints", "verify", "quick-1")
    assert answer.code == 0
    assert answer.out.splitlines() == ["step-2: whole", "step-4: whole"]


def test_every_file_that_is_not_whole_is_named(cli, written_run):
    """One flipped bit, one missing file: exit code 1 and both names."""
    run = written_run().checkpoint(2).checkpoint(4)
    flipped = run.folder / "checkpoints" / "step-2" / "optimizer.safetensors"
    contents = bytearray(flipped.read_bytes())
    contents[-1] ^= 1
    flipped.write_bytes(contents)
    (run.folder / "checkpoints" / "step-4" / "model.safetensors").unlink()
    answer = cli("checkpoints", "verify", "quick-1")
    assert answer.code == 1
    assert "step-2/optimizer.safetensors" in answer.out
    assert "step-4/model.safetensors" in answer.out
    document = cli("checkpoints", "verify", "quick-1", "--json").document
    assert [row["is_whole"] for row in document["checkpoints"]] == [False, False]


def test_a_save_in_progress_is_no_damaged_checkpoint(cli, written_run):
    """Verifying beside a running trainer must not raise an alarm."""
    run = written_run().checkpoint(2)
    (run.folder / "checkpoints" / "step-4.tmp-77").mkdir()
    assert cli("checkpoints", "verify", "quick-1").code == 0


def test_the_newest_whole_weights_are_exported(cli, written_run, desk):
    """A torn newer one is passed over, with a warning."""
    run = written_run().checkpoint(2).checkpoint(4)
    (run.folder / "checkpoints" / "step-4" / "model.safetensors").unlink()
    answer = cli("checkpoints", "export", "quick-1", "--json")
    assert answer.code == 0
    assert answer.document["checkpoint"] == "step-2"
    assert "step-4" in answer.err
    exported = desk / "quick-1-step-2.safetensors"
    assert exported.read_bytes() == (run.folder / "checkpoints" / "step-2" / "model.safetensors").read_bytes()


def test_an_export_that_cannot_be_written_is_an_error_of_the_input(cli, written_run):
    """The path is named, and what to do."""
    written_run().checkpoint(2)
    answer = cli("checkpoints", "export", "quick-1", "--to", "nowhere/model.safetensors")
    assert answer.code == 2
    assert "nowhere/model.safetensors" in answer.err


def test_a_run_without_a_whole_checkpoint_exports_nothing(cli, written_run):
    """Rather than half a model."""
    written_run()
    assert cli("checkpoints", "export", "quick-1").code == 2


SHAPES = tuple((tensor.name, tensor.shape) for tensor in network("gpt-3m", layers=2).tensors())


def test_weights_are_exported_as_a_folder_that_others_load(cli, written_run, desk):
    """Under the names that they know, with a configuration, beside the run and never over anything."""
    written_run().checkpoint(2, SHAPES)
    answer = cli("checkpoints", "export", "quick-1", "--format", "huggingface", "--json")
    assert answer.code == 0
    assert answer.document == {
        "run": "quick-1",
        "checkpoint": "step-2",
        "folder": "quick-1-step-2",
        "files": ["config.json", "model.safetensors"],
    }
    config = json.loads((desk / "quick-1-step-2" / "config.json").read_text())
    assert (config["model_type"], config["n_layer"], config["torch_dtype"]) == ("gpt2", 2, "float32")
    tensors = load_file(desk / "quick-1-step-2" / "model.safetensors")
    assert tensors["transformer.h.1.attn.c_attn.weight"].shape == (256, 768)
    assert {bytes(tensor.tobytes()[:4]) for tensor in tensors.values()} == {b"\x02" * 4}
    again = cli("checkpoints", "export", "quick-1", "--format", "huggingface")
    assert again.code == 2
    assert "already there" in again.err


def test_exported_weights_may_be_bf16(cli, written_run, desk):
    """Half the bytes, for who serves the model."""
    written_run().checkpoint(2, SHAPES)
    wishes = ("--format", "huggingface", "--dtype", "bf16", "--to", "given/away")
    assert cli("checkpoints", "export", "quick-1", *wishes).code == 0
    assert json.loads((desk / "given" / "away" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_type_is_no_matter_of_a_copy(cli, written_run):
    """A setting that is ignored is a promise that is not kept."""
    written_run().checkpoint(2)
    answer = cli("checkpoints", "export", "quick-1", "--dtype", "bf16")
    assert answer.code == 2
    assert "--dtype is for --format huggingface" in answer.err


def test_weights_of_a_class_of_ones_own_stay_as_they_are(cli, written_run):
    """No family of Hugging Face knows its tensors."""
    job = 'run: quick\nmodel: {module: "mine:Small"}\ndata: {text: python-stdlib}\ntrain: {steps: 6}\n'
    written_run(job=job).checkpoint(2)
    answer = cli("checkpoints", "export", "quick-1", "--format", "huggingface")
    assert answer.code == 2
    assert "mine:Small is a class of your own" in answer.err
    assert "--format safetensors" in answer.err


def test_weights_of_another_network_are_not_exported(cli, written_run):
    """A folder of a checkpoint and a job that do not belong together would load, and answer nonsense."""
    written_run().checkpoint(2)
    answer = cli("checkpoints", "export", "quick-1", "--format", "huggingface")
    assert answer.code != 0
    assert "extra: weight" in answer.err
    assert "missing: embedding.weight" in answer.err


def test_damaged_weights_are_not_exported_as_a_folder(cli, written_run, desk):
    """Every byte is checked before the first is given away."""
    run = written_run().checkpoint(2, SHAPES)
    path = run.folder / "checkpoints" / "step-2" / "model.safetensors"
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    answer = cli("checkpoints", "export", "quick-1", "--format", "huggingface")
    assert answer.code != 0
    assert "model.safetensors: damaged" in answer.err
    assert not (desk / "quick-1-step-2").exists()


@pytest.mark.process
def test_a_signed_and_encrypted_run_is_verified_rewrapped_and_exported(cli, written_run, desk, monkeypatch):
    """Forged and wrong keys are told apart, the old key opens nothing any more, and no key is ever printed."""
    old, new = "0a" * 32, "0b" * 32
    monkeypatch.setenv("PROJECT_KEY", old)
    (desk / "new.key").write_text(new)
    job = (desk / "job.yaml").read_text().replace("{every: 2}", "{every: 2, encrypt: 'env:PROJECT_KEY'}")
    run = written_run(job=job).folder
    state = {part: {"weight": torch.ones(4, 2)} for part in ("parameters", "exp_avg")}
    keys = open_keyring(run, sealing=Key(secret=bytes.fromhex(old)))
    with closing(Saver(run / "checkpoints", state, keys=keys)) as saver:
        saver.stage(2, state, {}, retention=Retention())
        saver.drain(60.0)
    assert cli("checkpoints", "verify", "quick-1").out == "step-2: whole\n"
    answers = [
        cli("checkpoints", "rewrap", "quick-1", "--new", "file:new.key", "--json"),
        cli("checkpoints", "verify", "quick-1"),
    ]
    assert answers[0].document["rewrapped"] == {"step-2": 2}
    assert answers[1].code == 1
    assert "wrong key: encrypted with key" in answers[1].out
    monkeypatch.setenv("PROJECT_KEY", new)
    assert cli("checkpoints", "export", "quick-1", "--json").code == 0
    assert load_file(desk / "quick-1-step-2.safetensors")["weight"].tolist() == [[1.0, 1.0]] * 4
    manifest = run / "checkpoints" / "step-2" / "manifest.json"
    document = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(seal(document | {"extra": {"seed": 8}})))
    answers.append(cli("checkpoints", "verify", "quick-1"))
    answers.append(cli("checkpoints", "export", "quick-1"))
    assert [answer.code for answer in answers[2:]] == [1, 1]
    assert all("forged" in answer.out + answer.err for answer in answers[2:])
    monkeypatch.delenv("PROJECT_KEY")
    answers.append(cli("checkpoints", "verify", "quick-1"))
    assert answers[-1].code == 2
    assert "the environment has no PROJECT_KEY" in answers[-1].err
    assert not any(key in answer.out + answer.err for answer in answers for key in (old, new))


def test_a_dry_run_shows_no_key(cli, desk, monkeypatch):
    """S-SEC-04: what would be started is printed, and the ranks are handed the key."""
    monkeypatch.setenv("PROJECT_KEY", "0c" * 32)
    cli_answer = cli(
        "run", "job.yaml", "--dry-run", "--json", "--set", "fault_tolerance.checkpoint.sign=env:PROJECT_KEY"
    )
    assert cli_answer.document["environment"]["PROJECT_KEY"] == "<redacted>"
    assert "0c0c" not in cli_answer.out + cli_answer.err


def test_a_checkpoint_of_torch_comes_in(cli, desk):
    """A folder that training begins with, or a message and exit code 2."""
    source = network("gpt-3m", layers=2)
    state = {tensor.name: torch.full(tensor.shape, 0.5) for tensor in source.tensors()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is there
        dcp.save(state, checkpoint_id=desk / "saved", no_dist=True)
    answer = cli("checkpoints", "import", "saved", "job.yaml", "--to", "mine", "--json")
    assert (answer.code, answer.document["files"]) == (0, ["config.json", "model.safetensors"])
    assert (load_file(desk / "mine" / "model.safetensors")["transformer.ln_f.weight"] == 0.5).all()
    (desk / "saved" / ".metadata").write_bytes(pickle.dumps(print))
    answer = cli("checkpoints", "import", "saved", "job.yaml", "--to", "again")
    assert answer.code == 2
    assert "its pickle names builtins.print" in answer.err
    assert not (desk / "again").exists()


def test_what_is_pinned_and_what_is_suspect_is_listed(cli, written_run):
    """Whoever looks for a good one sees which it is; marks can be taken back."""
    written_run().checkpoint(2).checkpoint(4)
    assert cli("checkpoints", "pin", "quick-1", "2").out == "step-2 of quick-1 stays\n"
    assert cli("checkpoints", "mark", "quick-1", "4", "--suspect", "loss spike").code == 0
    rows = cli("checkpoints", "ls", "quick-1", "--json").document["checkpoints"]
    assert [(row["is_pinned"], row["suspect"]) for row in rows] == [(True, None), (False, "loss spike")]
    assert "complete, suspect: loss spike" in cli("checkpoints", "ls", "quick-1").out
    assert cli("checkpoints", "export", "quick-1", "--json").document["checkpoint"] == "step-2"
    answer = cli("checkpoints", "mark", "quick-1", "4", "--clean", "--json")
    assert answer.document == {"run": "quick-1", "pinned": [2], "suspect": {}}
    assert cli("checkpoints", "pin", "quick-1", "2", "--remove", "--json").document["pinned"] == []


def test_marks_of_nothing_are_errors(cli, written_run):
    """A pin with a wrong step would keep nothing, and nobody would know."""
    written_run().checkpoint(2)
    assert cli("checkpoints", "pin", "quick-1", "3").code == 2
    assert "no checkpoint of step 3" in cli("checkpoints", "pin", "quick-1", "3").err
    assert cli("checkpoints", "mark", "quick-1", "2").code == 2
    assert cli("checkpoints", "mark", "quick-1", "2", "--clean", "--suspect", "x").code == 2
