"""What a vendor's code or log line means, its likely causes, and the next step.

The tables belong to the plugins (``Backend.explanations``); this package reads text and looks things up.
"""

from .decode import Finding, decode
from .explanation import Cause, Explanation
from .tables import general, read_table

__all__ = ["Cause", "Explanation", "Finding", "decode", "general", "read_table"]
