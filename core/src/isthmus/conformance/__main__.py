"""``python -m isthmus.conformance build``: compile the model cases here, to judge a machine without a compiler."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .. import api
from ..errors import InputError, IsthmusError
from ..registry import registry
from .cases import CASES
from .exclusions import reason
from .options import pairs


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and build. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m isthmus.conformance", description=__doc__)
    build = parser.add_subparsers(dest="command", required=True).add_parser("build", help="compile the model cases")
    build.add_argument("--backend", required=True)
    build.add_argument("--target", help="default: the backend's first")
    build.add_argument("--option", action="append", default=[], metavar="K=V", help="compile option")
    build.add_argument("out", type=Path, help="directory to create; give it to --artifacts")
    given = parser.parse_args(arguments)
    try:
        build_cases(given.backend, given.target, pairs(given.option), given.out)
    except IsthmusError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def build_cases(backend: str, target: str | None, options: dict[str, str], out: Path) -> None:
    """Compile every case the backend does not list as unsupported into a directory of ``out``."""
    from .cases.build import write

    plugin = registry().backend(backend)
    targets = plugin.targets()
    if target is None and not targets:
        raise InputError(f"backend {backend} has no compiler on this machine", fix="isthmus doctor")
    chosen = target or targets[0]
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            test = f"test_programs::test_the_result_matches_the_reference[{case.name}]"
            if why := reason(plugin.conformance.unsupported, test):
                print(f"{case.name}: unsupported: {why}", file=sys.stderr)
                continue
            graphs = write(case, plugin.dialect(chosen), Path(scratch) / case.name)
            print(api.compile(backend, graphs, out / case.name, target=chosen, options=options).path)


if __name__ == "__main__":
    sys.exit(main())
