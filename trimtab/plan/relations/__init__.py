"""A plan as relations: the tables that questions are asked of.

Hands nothing on: who explains a plan counts its decisions here and needs no table.
"""
