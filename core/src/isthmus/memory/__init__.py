"""Know before loading, never exceed the budget, give everything back."""

from .arena import Arena, Interval, max_live, plan_arena
from .budget import BOOKS, MemoryBudget
from .pool import Block, Pool

__all__ = ["BOOKS", "Arena", "Block", "Interval", "MemoryBudget", "Pool", "max_live", "plan_arena"]
