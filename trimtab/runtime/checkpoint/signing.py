"""Whose word is this? A key's mark on a JSON document. Standard library only: the writer signs.

The mark is HMAC-SHA256 over the document without its signature, in canonical text: keys in order, no spaces, ASCII. Who
has the key can sign and check; nobody else can do either.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALGORITHM = "hmac-sha256"
KEY_BYTES = 32
SIGNATURE = "signature"
_MANIFEST_PURPOSE = b"trimtab-checkpoint manifest 1\n"
_RECEIPT_PURPOSE = b"trimtab-checkpoint receipt 1\n"
_ID_PURPOSE = b"trimtab-checkpoint key 1\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A secret of 32 bytes. Its name may be shown, it never is."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """Its name: what documents call it by that it has marked. Tells nothing of the secret."""
        return hashlib.sha256(_ID_PURPOSE + self.secret).hexdigest()[:16]


def canonical(document: Mapping[str, Any]) -> bytes:
    """The one text of a document, whatever the order of its keys and its spaces."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def signed(document: Mapping[str, Any], key: Key) -> dict[str, Any]:
    """The manifest with the key's mark."""
    mark = _mark(_MANIFEST_PURPOSE, document, key)
    return {**document, SIGNATURE: {"algorithm": ALGORITHM, "key": key.id, "value": mark}}


def fits(document: Mapping[str, Any], value: str, key: Key) -> bool:
    """Whether ``value`` is the key's mark on a manifest."""
    return hmac.compare_digest(_mark(_MANIFEST_PURPOSE, document, key), value)


def receipt_mark(document: Mapping[str, Any], key: Key) -> str:
    """The mark on what one rank tells another of its files: no manifest can be made of it."""
    return _mark(_RECEIPT_PURPOSE, document, key)


def _mark(purpose: bytes, document: Mapping[str, Any], key: Key) -> str:
    unsigned = {name: value for name, value in document.items() if name != SIGNATURE}
    return hmac.new(key.secret, purpose + canonical(unsigned), hashlib.sha256).hexdigest()
