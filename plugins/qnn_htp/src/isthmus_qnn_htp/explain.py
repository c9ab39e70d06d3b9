"""The plugin's tables as explanations, for ``isthmus explain``."""

from __future__ import annotations

from isthmus.explain import Cause, Explanation, read_table

from .status import codes
from .vendor_log import CAUSES

_MEASURED = "measured on QNN 2.51"


def explanations() -> tuple[Explanation, ...]:
    """Status codes, lines of the compiler's log, and lines of others' logs."""
    by_code = tuple(
        Explanation(
            id=f"QNN {c.code}",
            meaning=c.meaning,
            source="public QNN API documentation; measured on QNN 2.47 to 2.51",
            causes=c.causes,
            codes=(c.code,),
            symbols=(c.symbol,) if c.symbol else (),
            catch_all=c.catch_all,
        )
        for c in codes().values()
    )
    compiler = tuple(
        Explanation(f"compiler-{number}", why, _MEASURED, (Cause(why, fix),), pattern=pattern)
        for number, (pattern, why, fix) in enumerate(CAUSES, 1)
    )
    return (*read_table(__package__, "log_lines.toml"), *compiler, *by_code)
