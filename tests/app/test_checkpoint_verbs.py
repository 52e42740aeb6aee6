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
