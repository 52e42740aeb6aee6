"""Where somebody listens, as people write it."""

import re

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


def read_address(text: str) -> tuple[str, int] | None:
    """Host and port; None if the text is no ADDRESS:PORT.

    >>> read_address("10.0.0.1:29400"), read_address("[::1]:0"), read_address("eth0")
    (('10.0.0.1', 29400), ('::1', 0), None)
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        return None
    return found["host"].strip("[]"), int(found["port"])
