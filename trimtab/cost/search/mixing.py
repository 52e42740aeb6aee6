"""Do the weaker of two kinds of devices pay? All of them together beside the stronger ones alone."""

from dataclasses import dataclass

from trimtab.cost.search.fabrics import Pool
from trimtab.cost.search.pricing import Objective


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """Two pools together beside the stronger one alone.

    Args:
        strong, weak: The pools; strong is whose devices are faster.
        together_s, alone_s: Of a step, on both and on the strong one.
        together_usd, alone_usd: Of a step; None without prices.
    """

    strong: Pool
    weak: Pool
    together_s: float
    alone_s: float
    together_usd: float | None
    alone_usd: float | None

    @property
    def speed_ratio(self) -> float:
        """Speed of both over that of the strong pool alone."""
        return self.alone_s / self.together_s

    @property
    def ideal_ratio(self) -> float:
        """What rates of products allow: their sum over the strong pool's."""
        return (self.strong.flops_per_s + self.weak.flops_per_s) / self.strong.flops_per_s

    @property
    def efficiency(self) -> float:
        """Speed ratio over the ideal one; 1 where nothing of the weak devices is lost."""
        return self.speed_ratio / self.ideal_ratio

    @property
    def usd_ratio(self) -> float | None:
        """Dollars of a step on both over those on the strong pool alone; None without prices."""
        if self.together_usd is None or not self.alone_usd:
            return None
        return self.together_usd / self.alone_usd

    def pays(self, objective: Objective) -> bool:
        """Whether the weak devices make the step better: shorter, or cheaper; shorter where no price is known."""
        ratio = self.usd_ratio
        if objective is Objective.DOLLARS and ratio is not None:
            return ratio < 1
        return self.speed_ratio > 1


def strong_and_weak(pools: tuple[Pool, ...]) -> tuple[Pool, Pool]:
    """Of two pools, by the rate of one device."""
    weak, strong = sorted(pools, key=lambda pool: pool.fabric.product_flops_per_s)
    return strong, weak
