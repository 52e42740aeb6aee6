"""Plans from text, as the tests of plans make them."""

from tests.plan.conftest import plan_of

__all__ = ["plan_of"]
