"""`python -m isthmus_ascend_cann.simulator.atc --model=... --framework=5 --output=... --soc_version=...`."""

from __future__ import annotations

import sys
import traceback

from . import flags
from .compiler import compile_model
from .failure import AtcError


def main(arguments: list[str]) -> int:
    """Compile; 0, or 255 after printing what ``atc`` prints when it fails."""
    print("[simulated atc] no CANN compiler ran: this om is for the simulated device only", file=sys.stderr)
    print("ATC start working now, please wait for a moment.")
    try:
        values = flags.parse(arguments)
        result = compile_model(values)
    except AtcError as failure:
        return _fail(failure)
    except OSError as error:
        return _fail(AtcError("E13003", "Write_File", str(error)))
    except Exception as error:  # noqa: BLE001  told in full, in the way the real command tells its own faults
        traceback.print_exc()
        return _fail(AtcError("E19999", "Inner_Error", f"{type(error).__name__}: {error}"))
    if values["display_model_info"] == "1":
        print(f"memory_size={result.work} weight_size={result.weight} stream_num=1 event_num=0")
    print("ATC run success, welcome to the next use.")
    return 0


def _fail(failure: AtcError) -> int:
    print("ATC run failed, Please check the detail log, Try 'atc --help' for more information")
    print(failure.block())
    return 255


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
