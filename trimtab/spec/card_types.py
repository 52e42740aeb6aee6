"""What the fields of the cards are made of: the base of every card, and types that say what they take."""

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from trimtab.terms import ComputeType, InputError, OnLoss, parse_seconds


@dataclass(frozen=True, slots=True)
class Takes:
    """What a field takes, in words for its error message."""

    phrase: str


class Card(BaseModel):
    """A mapping of the job file: nothing is converted in silence, no key is ignored, nothing changes.

    Its validator is built when it is first used, and so for whole jobs only: every command would wait for the others.
    """

    model_config = ConfigDict(
        defer_build=True,
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
    )


class OneOf(Card):
    """A choice written as a mapping with one key: the name chosen, its settings under it."""

    @model_validator(mode="after")
    def _has_one_member(self) -> Self:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError(f"exactly one of {', '.join(type(self).model_fields)}")
        return self

    @property
    def name(self) -> str:
        """The name chosen."""
        return next(name for name, value in self if value is not None)

    @property
    def chosen(self) -> Card:
        """The settings under the name chosen."""
        card = getattr(self, self.name)
        assert isinstance(card, Card)
        return card


def _read_duration(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_seconds(value)
    except InputError as error:
        raise ValueError(str(error)) from None


PositiveInt = Annotated[int, Field(ge=1), Takes("a whole number of at least 1")]
# Bounded, since a wrong number is factored into divisors to name the nearest right ones.
BatchSize = Annotated[int, Field(ge=1, le=2**24), Takes("a whole number from 1 to 16777216")]
NaturalInt = Annotated[int, Field(ge=0), Takes("a whole number of at least 0")]
PositiveFloat = Annotated[float, Field(gt=0), Takes("a number above 0")]
NaturalFloat = Annotated[float, Field(ge=0), Takes("a number of at least 0")]
Fraction = Annotated[float, Field(ge=0, le=1), Takes("a number from 0 to 1")]
BelowOne = Annotated[float, Field(ge=0, lt=1), Takes("a number from 0 to below 1")]
Duration = Annotated[
    float,
    Field(gt=0),
    BeforeValidator(_read_duration),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}),
    Takes("a duration above 0 such as '30s', or a number of seconds"),
]
KeyPlace = Annotated[
    str,
    Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:[^\x00]+)$"),
    Takes("env:NAME, a variable, or file:PATH"),
]
"""Where a secret stands; never the secret."""
RunName = Annotated[
    str,
    Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$"),
    Takes("a name of up to 63 small letters, digits and hyphens, not beginning with a hyphen"),
]
Word = Annotated[str, Field(min_length=1), Takes("text that is not empty")]
Words = Annotated[tuple[Word, ...], Field(strict=False), Takes("a list of texts that are not empty")]
OnLossChoice = Annotated[OnLoss, Field(strict=False)]
ComputeChoice = Annotated[ComputeType, Field(strict=False)]
