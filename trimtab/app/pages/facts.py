"""What a page is drawn from."""

from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Any]
"""An object of the explanation's document; its keys are those of the published schema."""
