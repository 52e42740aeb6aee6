"""Settings that name no interface of this host: refused at once, with what there is (S-FT-11)."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Trimtab
from tests.engines.conformance import launch
from trimtab.engines.interfaces import interfaces, rank_variables, refuse_wrong_network
from trimtab.engines.launch import Launch
from trimtab.terms import InputError


def with_variable(name: str, value: str) -> Callable[[Launch], Launch]:
    return lambda made: replace(made, environment={**made.environment, name: value})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda made: replace(made, interface="eth77"), "'eth77': the name of no interface of this host"),
        (lambda made: replace(made, interface="127.0.0.1"), "'127.0.0.1': an address, that of lo"),
        (lambda made: replace(made, interface="^docker0"), "'^docker0': a pattern, as NCCL takes it"),
        (with_variable("GLOO_SOCKET_IFNAME", "eth77"), "the variable GLOO_SOCKET_IFNAME is 'eth77'"),
        (with_variable("GLOO_SOCKET_IFNAME", "192.0.2.7"), "an address that no interface of this host has"),
        (with_variable("GLOO_SOCKET_IFNAME", "^lo"), "a pattern, as NCCL takes it"),
        (with_variable("NCCL_SOCKET_IFNAME", "eth77"), "which leaves none of this host's interfaces"),
        (lambda made: replace(made, hosts=2, listen=("192.0.2.7", 0)), "no address of this host"),
        (lambda made: replace(made, hosts=2, listen=("no.such.host.invalid", 0)), "which leads nowhere"),
        (lambda made: replace(made, hosts=2, listen=("localhost", 0)), "no other host reaches that"),
    ],
)
def test_what_names_no_interface_is_refused_with_those_there_are(
    change: Callable[[Launch], Launch], what: str
) -> None:
    """S-FT-11: left alone it ends in a collective, minutes later, with a message about something else."""
    with pytest.raises(InputError) as refused:
        refuse_wrong_network(change(launch()))
    assert what in str(refused.value)
    assert "interfaces of this host:" in str(refused.value)
    assert "  lo 127.0.0.1" in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made,
        lambda made: replace(made, interface="lo"),
        with_variable("GLOO_SOCKET_IFNAME", "lo"),
        with_variable("NCCL_SOCKET_IFNAME", "l"),
        with_variable("NCCL_SOCKET_IFNAME", "=lo"),
        with_variable("NCCL_SOCKET_IFNAME", "^docker0"),
        lambda made: replace(made, hosts=2, listen=("127.0.0.1", 0)),
    ],
)
def test_what_the_backends_understand_is_let_through(change: Callable[[Launch], Launch]) -> None:
    """A check that refuses a setting that works is worse than none."""
    refuse_wrong_network(change(launch()))


def test_ranks_of_several_hosts_talk_over_the_interface_of_the_address() -> None:
    """A host with several bridges: the backends would take another one, and the ranks would not meet."""
    several = replace(launch(), hosts=2)
    named = rank_variables(several, address="127.0.0.1", interface=None)
    assert named == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert rank_variables(launch(), address="127.0.0.1", interface=None) == {}
    said = replace(several, environment={"GLOO_SOCKET_IFNAME": "said"})
    assert "GLOO_SOCKET_IFNAME" not in rank_variables(said, address="127.0.0.1", interface=None)


def test_every_interface_is_listed() -> None:
    """The list is what a user chooses from."""
    assert set(interfaces()) == {name for _, name in socket.if_nameindex()}


@pytest.mark.process
def test_a_wrong_interface_makes_no_run(trimtab: Trimtab, workplace: Path) -> None:
    """S-FT-11: exit code 2, before a folder is made or a process started."""
    refused = trimtab(
        "run", "tiny.yaml", "--set", "run=wrong", "--set", "orchestration.interface=eth77", check=2
    )
    assert "orchestration.interface is 'eth77'" in refused.stderr
    assert not (workplace / "runs" / "wrong-1").exists()
