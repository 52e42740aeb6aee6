from dataclasses import replace

import pytest

from trimtab.catalog import (
    Cluster,
    ClusterError,
    Level,
    Machine,
    Node,
    UnknownNameError,
    accelerator,
    cluster,
    cluster_names,
)
from trimtab.catalog.named_clusters import composed

MACHINE = Machine(num_devices=4, cores=2, memory_bytes=8 * 2**30)


def test_units_of_a_cluster_are_converted_once() -> None:
    """A link that is 8 or 1000 times too fast makes the planner split across nodes."""
    h100s = cluster("512xH100")
    assert h100s.num_devices == 512
    assert h100s.nodes[0] == Node(accelerator=accelerator("H100-SXM-80GB"), num_devices=8)
    assert h100s.link(Level.NODE).bytes_per_s == 450e9
    assert h100s.link(Level.SITE).bytes_per_s == 50e9
    assert h100s.link(Level.SITE).latency_s == pytest.approx(2.7e-6)


@pytest.mark.parametrize(("name", "num_devices"), [("64xA100", 64), ("512xH100", 512)])
def test_links_of_a_named_cluster_are_those_of_its_accelerator(name: str, num_devices: int) -> None:
    """The two files state one fact twice; they must not drift apart."""
    named = cluster(name)
    device = named.nodes[0].accelerator
    assert named.num_devices == num_devices
    assert named.link(Level.NODE).bytes_per_s == device.peer_bytes_per_s
    assert named.link(Level.SITE).bytes_per_s == device.inter_node_bytes_per_s


@pytest.mark.parametrize("name", cluster_names())
def test_every_cluster_and_link_states_its_source(name: str) -> None:
    """A number without a source cannot be checked by anybody."""
    named = cluster(name, machine=MACHINE)
    assert named.source
    assert all(link.source and link.bytes_per_s > 0 and link.latency_s > 0 for link in named.links)


def test_neighbouring_ranks_stand_on_one_node() -> None:
    """The last axis of a mesh varies fastest over neighbours: this is what keeps tp inside a node."""
    a100s = cluster("64xA100")
    assert [a100s.node_of(rank) for rank in (0, 7, 8, 63)] == [0, 0, 1, 7]
    assert a100s.level_of(range(8)) is Level.NODE
    assert a100s.level_of([7, 8]) is Level.SITE
    assert a100s.level_of([5]) is Level.NODE


def test_nodes_of_different_size_are_counted_one_by_one() -> None:
    """Old and new nodes in one cluster must not shift the ranks of the others."""
    a100s = cluster("64xA100")
    small = replace(a100s.nodes[0], num_devices=2)
    mixed = replace(a100s, nodes=(small, a100s.nodes[0], small))
    assert mixed.num_devices == 12
    assert [mixed.node_of(rank) for rank in range(12)] == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2]


def test_this_machine_is_built_from_what_is_told() -> None:
    """Ranks on one machine share its memory: a plan that gave each all of it would be killed."""
    here = cluster("this-machine", machine=replace(MACHINE, fp32_flops_per_s=5e10))
    assert here.num_devices == 4
    assert here.nodes[0].cores == 2
    assert here.nodes[0].memory_bytes == 8 * 2**30
    assert here.nodes[0].accelerator.memory_bytes == 2 * 2**30
    assert here.nodes[0].accelerator.fp32_flops_per_s == 5e10
    assert here.nodes[0].accelerator.bf16_flops_per_s is None
    assert "Assumed" in here.link(Level.NODE).source


def test_this_machine_without_figures_is_refused() -> None:
    """Made-up cores would give a plan for some other machine."""
    with pytest.raises(ClusterError, match="'this-machine' needs the machine's devices, cores and memory"):
        cluster("this-machine")


def test_a_machine_without_ranks_is_refused() -> None:
    """Its memory could not be divided."""
    with pytest.raises(ClusterError, match="num_devices is 0; it must be at least 1"):
        Machine(num_devices=0, cores=2, memory_bytes=2**30)


def test_an_unknown_cluster_gets_the_nearest_name() -> None:
    """A typing error is found at once."""
    with pytest.raises(UnknownNameError, match=r"unknown cluster '512xH10'(.|\n)*Did you mean '512xH100'"):
        cluster("512xH10")


def test_one_node_has_no_network() -> None:
    """A plan that asks for it has split over nodes that are not there."""
    with pytest.raises(ClusterError, match="is one node and has no link at level site"):
        cluster("this-machine", machine=MACHINE).link(Level.SITE)


@pytest.mark.parametrize(("num_nodes", "num_links"), [(0, 2), (0, 0), (1, 0), (1, 2), (2, 1)])
def test_devices_that_could_not_reach_each_other_are_refused(num_nodes: int, num_links: int) -> None:
    """An estimate would fail late, in the middle of a search."""
    a100s = cluster("64xA100")
    with pytest.raises(ClusterError, match="it needs at least one node"):
        Cluster(name="x", nodes=a100s.nodes[:num_nodes], links=a100s.links[:num_links], source="test")


def test_a_cluster_of_two_kinds_numbers_its_devices_in_order() -> None:
    """A statement ON class must meet the cards that it names."""
    mixed = cluster("64xA100+64xH100")
    assert mixed.num_devices == 128
    names = [mixed.nodes[mixed.node_of(rank)].accelerator.name for rank in (0, 63, 64, 127)]
    assert names == ["A100-SXM-80GB", "A100-SXM-80GB", "H100-SXM-80GB", "H100-SXM-80GB"]


@pytest.mark.parametrize(
    ("name", "nodes", "kind"),
    [
        ("8xB200", 1, "B200-SXM-180GB"),
        ("3xH100", 1, "H100-SXM-80GB"),
        ("128xH200-SXM-141GB", 16, "H200-SXM-141GB"),
        ("1024xMI300X", 128, "MI300X"),
        ("16384xH100", 2048, "H100-SXM-80GB"),
        ("64xA100-SXM-40GB-100Gb", 8, "A100-SXM-40GB"),
        ("72xGB200", 1, "GB200-186GB"),
    ],
)
def test_so_many_of_a_kind_are_a_cluster(name: str, nodes: int, kind: str) -> None:
    """Whoever has other numbers than the table can plan for them, with the links that its kind usually has."""
    made = cluster(name)
    assert {node.accelerator.name for node in made.nodes} == {kind}
    assert len(made.nodes) == nodes
    assert made.num_devices == int(name.partition("x")[0])
    assert made.source
    assert made.link(Level.NODE).bytes_per_s == accelerator(kind).peer_bytes_per_s
    if name.endswith("-100Gb"):
        assert made.link(Level.SITE).bytes_per_s == 100e9 / 8 / 8
    elif nodes > 1:
        assert made.link(Level.SITE).bytes_per_s == accelerator(kind).inter_node_bytes_per_s


@pytest.mark.parametrize("name", ["64xA100", "512xH100", "2048xA100", "64xA100+64xH100", "512xA100-100Gb"])
def test_the_table_says_of_a_name_what_the_name_says(name: str) -> None:
    """Two ways to one cluster must not differ."""
    named, made = cluster(name), composed(name)
    assert named.nodes == made.nodes
    assert [link.level for link in named.links] == [link.level for link in made.links]
    for one, other in zip(named.links, made.links, strict=True):
        assert (one.bytes_per_s, one.latency_s) == pytest.approx((other.bytes_per_s, other.latency_s))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "100xH100",
            r"nodes of H100-SXM-80GB hold 8 devices, and 100 fill no number of them; take 96 or 104",
        ),
        (
            "144xGB200",
            r"does not know the rate between nodes of GB200-186GB; say what a node has: 144xGB200-400Gb",
        ),
    ],
)
def test_what_cannot_be_composed_is_refused(name: str, message: str) -> None:
    """Half a node, or a link that nobody knows, would be planned for as something else."""
    with pytest.raises(ClusterError, match=message):
        cluster(name)


def test_a_kind_that_nobody_knows_is_told_with_what_can_be_said() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown cluster '64xQ900'(.|\n)*COUNTxKIND"):
        cluster("64xQ900")
