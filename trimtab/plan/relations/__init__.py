"""A plan as relations: the tables that questions are asked of."""

from trimtab.plan.relations.every_relation import PLAN_SCHEMAS, plan_relations

__all__ = ["PLAN_SCHEMAS", "plan_relations"]
