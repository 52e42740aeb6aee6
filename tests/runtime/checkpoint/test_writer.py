import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from trimtab.ledger.manifests import Manifest, Part, manifest_document
from trimtab.runtime.checkpoint.chunks import CHUNK_BYTES
from trimtab.runtime.checkpoint.durable import process_space
from trimtab.runtime.checkpoint.process import WriterEndedError, WriterProcess
from trimtab.runtime.checkpoint.store import find_checkpoints, newest_complete
from trimtab.runtime.checkpoint.tensorfile import header_of

pytestmark = pytest.mark.process

DEADLINE_S = 60.0


def _image(num_floats):
    header, _ = header_of([("a", (num_floats,))])
    return header + os.urandom(4 * num_floats)


def _save(step, image, *, fault=None, prune=()):
    part = Part(name="parameters", file="model.safetensors", num_tensors=1, size_bytes=len(image))
    return {
        "step": step,
        "started_ns": time.monotonic_ns(),
        "fault": fault,
        "files": [
            {"name": "model.safetensors", "offset_bytes": 0, "size_bytes": len(image), "head_bytes": 64}
        ],
        "key": None,
        "sealing": None,
        "manifest": manifest_document(Manifest(step=step, files=(), parts=(part,))),
        "prune": list(prune),
    }


@pytest.fixture
def start(tmp_path):
    """Starts a writer over an image of bytes; ends all at the end."""
    started = []

    def start(image):
        fd = os.memfd_create("image")
        os.write(fd, image)
        writer = WriterProcess(
            staging_fd=fd, size_bytes=len(image), folder=tmp_path, run_folder=tmp_path.parent
        )
        os.close(fd)
        started.append(writer)
        return writer

    yield start
    for writer in started:
        writer.end()


def _answers(writer, count=1):
    answers = []
    deadline = time.monotonic() + DEADLINE_S
    while len(answers) < count and time.monotonic() < deadline:
        writer.wait(deadline - time.monotonic())
        answers += writer.receive()
    return answers


def _until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_writer_is_small():
    """Torch beside every trainer would cost seconds at each start and hundreds of megabytes."""
    code = "import sys, trimtab.runtime.checkpoint.writer; print(*sys.modules)"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = {name.split(".")[0] for name in listed.stdout.split()}
    assert not modules & {"torch", "numpy", "safetensors", "pydantic", "yaml", "typer", "multiprocessing"}


def test_writer_is_up_at_once(start):
    """A writer that died is replaced between two steps; it must be there for the next save."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        writer = start(b"image")
        _until(lambda writer=writer: writer.receive() or writer.was_ready)
        writer.end()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.15  # of computing: the rest is other people's load


def test_save_is_whole_and_says_how_long_it_took(start, tmp_path):
    """The plainest save of all."""
    image = _image(1000)
    writer = start(image)
    writer.send(_save(20, image))
    (answer,) = _answers(writer)
    assert answer["event"] == "saved"
    assert 0 < answer["seconds"] < DEADLINE_S
    assert (tmp_path / "step-20" / "model.safetensors").read_bytes() == image
    assert [found.step for found in find_checkpoints(tmp_path) if found.is_complete] == [20]


def test_existing_folder_is_never_overwritten(start, tmp_path):
    """Other formats lose the old checkpoint when a save over it is cut short."""
    (tmp_path / "step-20").mkdir()
    (tmp_path / "step-20" / "note").write_text("mine")
    image = _image(10)
    writer = start(image)
    writer.send(_save(20, image))
    (answer,) = _answers(writer)
    assert answer["event"] == "failed"
    assert "not empty" in answer["reason"]
    assert os.listdir(tmp_path) == ["step-20"]
    assert os.listdir(tmp_path / "step-20") == ["note"]


def test_pruning_passes_over_what_is_absent_or_in_the_way(start, tmp_path):
    """S-CKP-10: a run would die because somebody tidied up an old checkpoint by hand."""
    image = _image(10)
    writer = start(image)
    (tmp_path / "step-2").write_text("not a folder")
    writer.send(_save(20, image, prune=[1, 2]))
    (answer,) = _answers(writer)
    assert (answer["event"], answer["pruned"]) == ("saved", [1])
    assert answer["kept"][0][0] == 2


def _slow_save(start, tmp_path):
    image = _image(2 * CHUNK_BYTES)
    writer = start(image)
    writer.send(_save(20, image, fault="slow"))
    _until(lambda: (tmp_path / f"step-20.tmp-{writer.pid}-{process_space()}" / "model.safetensors").exists())
    return writer


def test_end_of_input_discards_what_is_unfinished(start, tmp_path):
    """A trainer that is gone leaves no half checkpoint and no process behind."""
    writer = _slow_save(start, tmp_path)
    writer.end()
    assert os.listdir(tmp_path) == []


def test_signals_to_the_group_do_not_stop_a_save(start, tmp_path):
    """S-CKP-20: Slurm sends SIGTERM to every process of a step: the save it asks for would be cut short."""
    writer = _slow_save(start, tmp_path)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(writer.pid, number)
    (answer,) = _answers(writer)
    assert answer["event"] == "saved"


def test_killed_writer_is_noticed_with_its_signal(start, tmp_path):
    """S-CKP-10: a save that never ends would be waited for."""
    writer = _slow_save(start, tmp_path)
    os.kill(writer.pid, signal.SIGKILL)
    with pytest.raises(WriterEndedError, match="killed by signal 9"):
        _answers(writer)
    assert newest_complete(tmp_path, None).folder is None


TRAINER = """
import json, os, sys, time
from pathlib import Path
from trimtab.runtime.checkpoint.process import WriterProcess
image, request, folder = Path(sys.argv[1]).read_bytes(), json.loads(sys.argv[2]), Path(sys.argv[3])
fd = os.memfd_create("image")
os.write(fd, image)
writer = WriterProcess(staging_fd=fd, size_bytes=len(image), folder=folder, run_folder=folder.parent)
writer.send(request)
if os.fork() == 0:  # as a data loader: it inherits the pipe, and must not keep the writer alive
    os.close(1)
    time.sleep(60)
print(writer.pid, os.getpid(), flush=True)
time.sleep(60)
"""


def test_writer_dies_with_a_killed_trainer_whose_children_live(tmp_path):
    """A forked child holds the pipe open: the writer would live on and write into the next attempt's run."""
    image = _image(2 * CHUNK_BYTES)
    (tmp_path / "image").write_bytes(image)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    request = json.dumps(_save(20, image, fault="slow"))
    arguments = [sys.executable, "-c", TRAINER, str(tmp_path / "image"), request, str(folder)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, start_new_session=True) as trainer:
        pid = int(trainer.stdout.readline().split()[0])
        try:
            _until(lambda: (folder / f"step-20.tmp-{pid}-{process_space()}" / "model.safetensors").exists())
            trainer.kill()
            _until(lambda: not os.path.exists(f"/proc/{pid}/fd/0"))  # one that nobody has reaped has none
            assert os.listdir(folder) == []
        finally:
            os.killpg(trainer.pid, signal.SIGKILL)
