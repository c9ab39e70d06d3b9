"""Model cases: small graph sets, and the float64 results they must give.

References are plain numpy, written from the formula; no runtime takes part. Importing this needs no ONNX: a machine
that only runs artifacts made elsewhere can still judge them.
"""

from .case import Arrays, Case, Entry, Input
from .language import CASES as LANGUAGE
from .operators import CASES as OPERATORS

CASES: tuple[Case, ...] = (*OPERATORS, *LANGUAGE)

__all__ = ["CASES", "Arrays", "Case", "Entry", "Input"]
