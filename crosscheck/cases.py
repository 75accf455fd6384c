"""The cases every backend is checked on: one frozen table, read by the check, the tests and the bench.

A case says which operator, on what shapes, dtype and arguments, and how its inputs are drawn; the same case
gives the same bytes on every machine. Each operator's share stands in a module of its own in ``crosscheck/tables``.
"""

from types import MappingProxyType
from typing import Mapping

from crosscheck.case import Case, Operator, table
from crosscheck.distributions import DISTRIBUTIONS, draw_values, special_values
from crosscheck.tables import attention, matmul, rmsnorm, softmax, vector_add

__all__ = ["CASES", "DISTRIBUTIONS", "DTYPES", "OPERATORS", "Case", "Operator", "draw_values", "special_values"]

_TABLES = (vector_add, softmax, rmsnorm, matmul, attention)

OPERATORS: Mapping[str, Operator] = MappingProxyType({op.name: op for module in _TABLES for op in module.OPERATORS})

CASES: Mapping[str, Case] = MappingProxyType(table(case for module in _TABLES for case in module.cases()))

DTYPES = tuple(dict.fromkeys(dtype for operator in OPERATORS.values() for dtype in operator.dtypes))
