"""Know before loading, never exceed the budget, give everything back."""

from .arena import Arena, Interval, max_live, plan_arena
from .budget import BOOKS, MemoryBudget
from .ledger import MemoryLedger, MemoryReport
from .pool import Block, Pool

__all__ = [
    "BOOKS",
    "Arena",
    "Block",
    "Interval",
    "MemoryBudget",
    "MemoryLedger",
    "MemoryReport",
    "Pool",
    "max_live",
    "plan_arena",
]
