from trimtab.catalog import network


def test_figures_add_up_and_name_their_lines(cli):
    """Memory is the sum of its classes; every choice names the line or the default that made it."""
    document = cli("explain", "job.yaml", "--json").document
    assert document["mesh"] == {"axes": {"dp": 2}, "decided_by": "default"}
    assert document["on_loss"]["rule"] == "exact"
    assert document["on_loss"]["decided_by"] == "auto (default)"
    assert document["checkpoints"]["decided_by"] == "job.yaml:6"
    assert document["work"]["decided_by"]["fault_tolerance.shares"] == "job.yaml:6"
    for row in document["ranks"]:
        sizes = dict(row["memory"])
        assert sizes.pop("total_bytes") == sum(sizes.values())
    assert document["memory"]["needed_bytes"] == sum(
        row["memory"]["total_bytes"] for row in document["ranks"]
    )


def test_flops_are_stated_under_both_conventions(cli):
    """A figure without its convention cannot be compared with anybody's."""
    work = cli("explain", "job.yaml", "--json").document["work"]
    model = network("gpt-3m", layers=2)
    assert work["flops_per_step"] == {
        "causal": model.flops_per_token(128, causal=True) * 8 * 128,
        "full": model.flops_per_token(128, causal=False) * 8 * 128,
    }


def test_every_share_has_one_owner_with_any_number_of_ranks(cli):
    """Who takes over what after a loss is part of the plan."""
    ownership = cli("explain", "job.yaml", "--json", "--set", "orchestration.devices=4").document["ownership"]
    assert [item["ranks"] for item in ownership] == [4, 3, 2, 1]
    for item in ownership:
        assert sorted(share for shares in item["shares"] for share in shares) == [0, 1, 2, 3]


def test_text_holds_what_the_document_holds(cli):
    """People get the same answer as programs."""
    text = cli("explain", "job.yaml").out
    for expected in (
        "dp 2",
        "4 shares, 2 samples each",
        "same bits",
        "every 2 steps",
        "reduce: out =",
        "job.yaml:6",
    ):
        assert expected in text


def test_what_a_users_class_needs_is_not_invented(cli, desk):
    """Its shapes are known to torch only: explain says so and prints no figures."""
    text = (desk / "job.yaml").read_text().replace("{preset: gpt-3m, layers: 2}", "{module: 'mine:Model'}")
    (desk / "job.yaml").write_text(text)
    answer = cli("explain", "job.yaml")
    assert answer.code == 0
    assert "known to torch only" in answer.out
    assert cli("explain", "job.yaml", "--json").document["ranks"] == []


def test_an_unknown_network_is_refused_at_its_line(cli, desk):
    """With the nearest name, before any process has read it."""
    (desk / "job.yaml").write_text((desk / "job.yaml").read_text().replace("gpt-3m", "gpt-4m"))
    answer = cli("explain", "job.yaml")
    assert answer.code == 2
    assert answer.err.startswith("job.yaml:2")
    assert "Did you mean 'gpt-3m'" in answer.err


def test_a_named_cluster_is_what_a_rank_must_fit_in(cli):
    """A plan for 80 GB cards is checked against 80 GB cards, wherever it is explained."""
    at = ("--set", "orchestration.cluster=64xA100", "--set", "model.layers=null")
    assert cli("explain", "job.yaml", *at).code == 0
    answer = cli("explain", "job.yaml", *at, "--set", "model.preset=llama2-7b")
    assert answer.code == 3
    assert "A100" in answer.out
