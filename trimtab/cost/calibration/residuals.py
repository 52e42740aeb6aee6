"""What a fitted model still misses: a smooth function of shape and layout, with how sure it is of it.

A Gaussian process over the logarithm of measured over modelled, after Kennedy and O'Hagan 2001: runs that resemble each
other are missed alike. Far from every measurement it adds nothing and says so by its width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.cost.closed_form import Cases, Floats

LABEL_DISTANCES = (0.4, 1.2, 1.2)
"""Added to the squared distance of two runs for another framework, another number of bits and another device."""

SIZES = (0.02, 0.04, 0.08, 0.15, 0.25)
"""Of what the model misses, tried in turn."""

NOISES = (0.006, 0.012, 0.025, 0.05, 0.1, 0.2)
"""Of a measurement around a smooth function, tried in turn."""

_USUAL_SIZE, _USUAL_NOISE, _LOG_SPREAD = 0.08, 0.03, 0.6
_LARGEST_SURPRISE = 0.6
"""Of a logarithm: a row that is missed by more counts as so much."""

_SAMPLE = 250
"""Rows that sizes are chosen by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """Where runs stand towards each other.

    Args:
        places: (runs, coordinates), each coordinate over the distance at which runs cease to resemble each other.
        labels: (runs, kinds of label).
    """

    places: Floats
    labels: Sequence[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Residuals:
    """What was missed in known runs.

    Args:
        size, noise: Chosen by the likelihood of what was missed.
    """

    known: Features
    weights: Floats
    precision: Floats
    size: float
    noise: float

    @property
    def spread(self) -> float:
        """Standard deviation far from every known run."""
        return float(np.hypot(self.size, self.noise))

    def at(self, features: Features) -> tuple[Floats, Floats]:
        """What to add to the model's logarithm, and the standard deviation of what is left, noise included."""
        shared = self.size**2 * resemblance(features, self.known)
        left = self.size**2 + self.noise**2 - np.einsum("ij,jk,ik->i", shared, self.precision, shared)
        return shared @ self.weights, np.sqrt(np.maximum(left, _TINY))


_TINY = 1e-8


def features_of(cases: Cases, labels: Sequence[tuple[str, ...]]) -> Features:
    """Sizes and degrees as logarithms; every case has its own."""
    coordinates = (
        (cases.local_tokens, 0.8),
        (cases.embed, 0.8),
        (cases.tensor, 0.7),
        (cases.pipeline, 1.2),
        (cases.data, 3.0),
        (np.maximum(cases.microbatches, 0.5), 3.0),
        (cases.layers, 3.0),
        (cases.sequence, 1.5),
        (cases.expert, 1.5),
        (cases.context, 1.5),
        (cases.virtual, 1.5),
        (cases.heads * cases.head_size**2 / cases.embed, 0.5),
        (2.0 ** (2 * cases.recompute), 2.0),
        (2.0**cases.is_asynchronous, 1.0),
        (2.0**cases.is_fine_scaled, 1.0),
    )
    places = np.stack([np.log2(value) / length for value, length in coordinates], axis=1)
    return Features(places=places, labels=labels)


def resemblance(one: Features, other: Features) -> Floats:
    """From 0 to 1, of every run with every other: exp(-d^2 / 2)."""
    squares = (
        (one.places**2).sum(axis=1)[:, None]
        + (other.places**2).sum(axis=1)[None]
        - 2 * one.places @ other.places.T
    )
    for kind, distance in enumerate(LABEL_DISTANCES):
        mine = np.asarray([labels[kind] for labels in one.labels])
        theirs = np.asarray([labels[kind] for labels in other.labels])
        squares = squares + distance * (mine[:, None] != theirs[None])
    found: Floats = np.exp(-np.maximum(squares, 0.0) / 2)
    return found


def learn_residuals(features: Features, missed: Floats) -> Residuals:
    """From what a model missed, measured over modelled as a logarithm, in known runs."""
    missed = np.clip(missed, -_LARGEST_SURPRISE, _LARGEST_SURPRISE)
    alike = resemblance(features, features)
    size, noise = _likeliest(alike, missed)
    covariance = size**2 * alike + noise**2 * np.eye(len(missed))
    precision = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    return Residuals(known=features, weights=precision @ missed, precision=precision, size=size, noise=noise)


def _likeliest(alike: Floats, missed: Floats) -> tuple[float, float]:
    """Size and noise under which what was missed is most likely, given what is usual."""
    chosen = np.random.default_rng(1).permutation(len(missed))[:_SAMPLE]
    values, vectors = np.linalg.eigh(alike[np.ix_(chosen, chosen)])
    squares = (vectors.T @ missed[chosen]) ** 2

    def surprise(size: float, noise: float) -> float:
        variances = size**2 * np.maximum(values, 0.0) + noise**2
        unusual = (np.log(size / _USUAL_SIZE) ** 2 + np.log(noise / _USUAL_NOISE) ** 2) / _LOG_SPREAD**2
        return float(np.sum(squares / variances) + np.sum(np.log(variances)) + unusual) / 2

    return min(
        ((size, noise) for size in SIZES for noise in NOISES), key=lambda candidate: surprise(*candidate)
    )
