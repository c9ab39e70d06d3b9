"""Entry point: puts the commands together and turns errors into exit codes.

Exit codes: 0 ok, 1 the check found a difference or a misfit, 2 usage or bad input, 3 backend unavailable.
"""

from __future__ import annotations

import errno
import json
import logging
import sys

import typer

from ..errors import IsthmusError
from . import answer, build, checks, compare, explain, machine, memory, plan, program
from .output import emitted, fail

app = typer.Typer(
    name="isthmus",
    help="One model on Snapdragon (QNN HTP), Ascend (CANN) and CPU: compile, size, load, run, compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    machine.backends,
    machine.doctor,
    explain.explain,
    build.export,
    build.compile,
    program.size,
    plan.plan,
    memory.memory,
    program.inspect,
    program.run,
    answer.generate,
    answer.evaluate,
    compare.compare,
    checks.conformance,
    checks.bench,
):
    app.command()(_command)


def main() -> None:
    """Run the command line; never returns."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stderr)
    try:
        app()
    except SystemExit as left:
        if left.code == 2 and "--json" in sys.argv and not emitted():  # the parser has told people on stderr
            print(
                json.dumps({"error": "UsageError", "what": "the command line cannot be used", "exit_code": 2}, indent=1)
            )
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.exit(f"error: the result cannot be written: {error.strerror}")
    except IsthmusError as error:
        sys.exit(fail(error))
    except ExceptionGroup as group:
        errors, rest = group.split(IsthmusError)
        if rest is not None or errors is None:
            raise
        sys.exit(max(fail(e) for e in _leaves(errors)))


def _leaves(group: ExceptionGroup[IsthmusError]) -> list[IsthmusError]:
    found: list[IsthmusError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, ExceptionGroup) else [error]
    return found


if __name__ == "__main__":
    main()
