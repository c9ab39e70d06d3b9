"""The plugin's tables as explanations, for ``isthmus explain``."""

from __future__ import annotations

from isthmus.explain import Cause, Explanation, read_table

from .errors import Meaning, codes, messages

_CODES = "public AscendCL documentation of status codes; CANN 8.0 to 8.5"
_MESSAGES = "public CANN documentation of E-codes"
_CATCH_ALLS = {500000, 500001, 500002, 500003, 500004, 507000, 507011, 507899, 545000}
_CATCH_ALL_MESSAGES = {"E19999", "EZ9999"}


def explanations() -> tuple[Explanation, ...]:
    """Lines of logs, E-codes, and status codes."""
    rows = messages()
    spoken = [_message(row, [other.code for other in rows[:at]]) for at, row in enumerate(rows)]
    return (*read_table(__package__, "log_lines.toml"), *spoken, *map(_code, codes().values()))


def _code(row: Meaning) -> Explanation:
    return Explanation(
        id=f"ACL {row.code}",
        meaning=row.meaning,
        source=_CODES,
        causes=_causes(row),
        codes=(int(row.code),),
        symbols=(row.symbol,) if row.symbol else (),
        catch_all=int(row.code) in _CATCH_ALLS,
    )


def _message(row: Meaning, before: list[str]) -> Explanation:
    """An E-code is one symbol; a class of them is a pattern that leaves out the codes of the rows before it."""
    if "." not in row.code:
        return Explanation(
            id=row.code,
            meaning=row.meaning,
            source=_MESSAGES,
            causes=_causes(row),
            symbols=(row.code,),
            catch_all=row.code in _CATCH_ALL_MESSAGES,
        )
    prefix = row.code.rstrip(".")
    known = "".join(rf"(?!{code}\b)" for code in before if code.startswith(prefix) and "." not in code)
    digits = len(row.code) - len(prefix)
    return Explanation(
        id=row.code,
        meaning=row.meaning,
        source=_MESSAGES,
        causes=_causes(row),
        pattern=rf"\b{known}{prefix}\d{{{digits}}}\b",
        catch_all=True,
    )


def _causes(row: Meaning) -> tuple[Cause, ...]:
    return (Cause(row.cause or row.meaning, row.fix),) if row.cause or row.fix else ()
