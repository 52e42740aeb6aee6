from trimtab.app.starting import TEMPLATE


def test_the_first_job_is_one_that_runs(cli, desk):
    """What init writes is accepted by every check, as it stands."""
    assert cli("init", "fresh").code == 0
    assert (desk / "fresh" / "job.yaml").read_text() == TEMPLATE
    assert cli("explain", "fresh/job.yaml").code == 0
    answer = cli("run", "fresh/job.yaml", "--dry-run")
    assert answer.code == 0
    assert "warning" not in answer.err


def test_an_existing_file_is_never_replaced(cli, desk):
    """It may be hours of somebody's work."""
    before = (desk / "job.yaml").read_text()
    answer = cli("init")
    assert answer.code == 2
    assert "already there" in answer.err
    assert (desk / "job.yaml").read_text() == before


def test_a_folder_that_cannot_be_made_is_an_error_of_the_input(cli, desk):
    """With the system's reason."""
    answer = cli("init", "job.yaml/below")
    assert answer.code == 2
    assert "job.yaml/below" in answer.err
