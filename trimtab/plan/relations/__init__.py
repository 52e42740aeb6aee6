"""A plan as relations: the tables that questions are asked of."""

from trimtab.plan.relations.every_relation import PLAN_SCHEMAS, plan_relations
from trimtab.plan.relations.tensors import LANGUAGE_COLUMNS, OfRow

__all__ = ["LANGUAGE_COLUMNS", "PLAN_SCHEMAS", "OfRow", "plan_relations"]
