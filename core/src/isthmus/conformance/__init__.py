"""The conformance suite: what every backend promises, as tests. See docs/conformance.md.

``run`` is what ``isthmus conformance`` calls. Underneath it is pytest::

    python -m pytest --pyargs isthmus.conformance -p isthmus.conformance.options --isthmus-backend NAME
"""

from .runner import Outcome, Report, run

__all__ = ["Outcome", "Report", "run"]
