"""The network interfaces of this host: which there are, which one ranks talk over, and settings that name none.

Wrong ones are refused before anything is started. Left alone they would end in a collective, minutes later, with a
message about something else: gloo takes exact names only, NCCL also prefixes, `=NAME` and `^NAME`.
"""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping

from trimtab.engines.launch import Launch
from trimtab.terms import InputError

GLOO_VARIABLE, NCCL_VARIABLE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of an interface."""


def interfaces() -> dict[str, str]:
    """The interfaces of this host and the IPv4 address of each; empty where it has none."""
    return {name: _address_of(name) for _, name in socket.if_nameindex()}


def interface_with(address: str) -> str | None:
    """The interface that has an address; None if none of this host's has it."""
    found = [name for name, own in interfaces().items() if own == address]
    return found[0] if found else None


def rank_variables(launch: Launch, *, address: str, interface: str | None) -> dict[str, str]:
    """What makes ranks talk over the interface of an address; nothing on a single host, or where the user says it.

    Args:
        launch: What is started.
        address: Of this host on the way to the coordinator.
        interface: Chosen instead of the one that has this address.
    """
    if launch.hosts == 1:
        return {}
    name = interface or interface_with(address)
    if name is None:
        return {}
    wanted = {GLOO_VARIABLE: name, NCCL_VARIABLE: f"={name}"}
    return {key: value for key, value in wanted.items() if key not in launch.environment}


def refuse_wrong_network(launch: Launch) -> None:
    """Look at everything in a launch that names an interface or an address of this host.

    Raises: InputError listing the interfaces there are.
    """
    if launch.interface is not None:
        check_name(launch.interface, "orchestration.interface")
    check_variables(launch.environment)
    if launch.hosts > 1:
        _check_listen(launch.listen[0])


def check_variables(environment: Mapping[str, str]) -> None:
    """Look at the variables by which the backends choose an interface.

    Raises: InputError naming the variable, what it takes, and the interfaces there are.
    """
    for name in filter(None, environment.get(GLOO_VARIABLE, "").split(",")):
        check_name(name, f"the variable {GLOO_VARIABLE}")
    pattern = environment.get(NCCL_VARIABLE, "")
    if pattern and not _chosen(pattern):
        raise InputError(
            f"the variable {NCCL_VARIABLE} is {pattern!r}, which leaves none of this host's interfaces; it takes "
            f"beginnings of names, =NAME for one name, ^NAME for all but one\n{_listed()}"
        )


def check_name(name: str, where: str) -> None:
    """Refuse what is not exactly the name of an interface of this host.

    Raises: InputError saying what it is instead, and the interfaces there are.
    """
    found = interfaces()
    if name in found:
        return
    if name.startswith(("^", "=")):
        what = "a pattern, as NCCL takes it"
    elif _is_address(name):
        owner = interface_with(name)
        what = f"an address{f', that of {owner}' if owner else ' that no interface of this host has'}"
    else:
        what = "the name of no interface of this host"
    raise InputError(f"{where} is {name!r}: {what}; it takes the exact name of an interface\n{_listed()}")


def _check_listen(host: str) -> None:
    """An address of this host, and no name that leads back to it alone."""
    try:
        address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise InputError(
            f"orchestration.listen names {host!r}, which leads nowhere: {error}\n{_listed()}"
        ) from None
    if ipaddress.ip_address(str(address)).is_loopback and not _is_address(host):
        raise InputError(
            f"orchestration.listen names {host!r}, which is {address} here: no other host reaches that; write the "
            f"address\n{_listed()}"
        )
    try:
        socket.create_server((str(address), 0)).close()
    except OSError as error:
        raise InputError(
            f"orchestration.listen names {host!r}, no address of this host: {error.strerror}\n{_listed()}"
        ) from None


def _chosen(pattern: str) -> list[str]:
    """The interfaces that NCCL's syntax leaves."""
    names = list(interfaces())
    is_excluding, text = pattern.startswith("^"), pattern.lstrip("^")
    is_exact, text = text.startswith("="), text.lstrip("=")
    parts = [part.partition(":")[0] for part in text.split(",")]

    def matches(name: str) -> bool:
        return any(name == part if is_exact else name.startswith(part) for part in parts)

    return [name for name in names if matches(name) != is_excluding]


def _listed() -> str:
    rows = [f"  {name} {address}".rstrip() for name, address in sorted(interfaces().items())]
    return "\n".join(["interfaces of this host:", *rows])


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _address_of(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError:
            return ""
