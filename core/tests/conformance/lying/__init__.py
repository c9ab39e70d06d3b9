"""Lying backends: each breaks one promise, and the suite must fail on the test of that promise.

A promise without a liar is a promise the suite does not test; ``test_mutants.py`` insists on one for every test.
"""

from . import artifacts, bindings, core, lent, lifetimes, memory, plugins, programs
from .base import MUTANTS, Mutant, honest, install

__all__ = [
    "MUTANTS",
    "Mutant",
    "artifacts",
    "bindings",
    "core",
    "honest",
    "install",
    "lent",
    "lifetimes",
    "memory",
    "plugins",
    "programs",
]
