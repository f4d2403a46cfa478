"""The program `lockstep`: where it is, and lines of JSON through it. Needs nothing but the standard library."""

import json
import os
import pathlib
import shutil
import subprocess
from typing import Iterable, List, Optional

from ._abi import HERE, LockstepError


def _executable(path: pathlib.Path) -> Optional[str]:
    if not path.is_file():
        return None
    if not os.access(path, os.X_OK):  # unpacked by what does not keep modes
        try:
            path.chmod(0o755)
        except OSError:
            return None
    return str(path)


def carried() -> Optional[str]:
    """The wheel's own program; None where the package is no wheel's."""
    return _executable(HERE / "bin" / "lockstep")


def find() -> str:
    """Path of the program: LOCKSTEP_PROGRAM, the wheel's own, that of a build of the source tree, the one in PATH.

    Raises LockstepError where there is none."""
    given = os.environ.get("LOCKSTEP_PROGRAM")
    if given:
        return given
    built = [file for file in (HERE.parent.parent / "build").glob("*/lockstep") if _executable(file)]
    built.sort(key=lambda file: (file.parent.name == "release", file.stat().st_mtime))
    found = carried() or (str(built[-1]) if built else None) or shutil.which("lockstep")
    if found is None:
        raise LockstepError(f"the program lockstep is not found: LOCKSTEP_PROGRAM is not set, and it is neither in {HERE}, "
                            "nor in a build of its source tree, nor in PATH", "io")
    return found


def lines(words: List[str], records: Iterable[dict]) -> List[dict]:
    """What `lockstep WORDS..` makes of lines of JSON, one for each. Raises LockstepError with the program's sentence."""
    sent = [json.dumps(record) for record in records]
    done = subprocess.run([find(), *words], input="".join(line + "\n" for line in sent), capture_output=True, text=True,
                          encoding="utf-8", check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise LockstepError(said[-1].removeprefix("lockstep: ") if said else f"exit code {done.returncode}", "format")
    out = [json.loads(line) for line in done.stdout.splitlines()]
    if len(out) != len(sent):
        raise LockstepError(f"{words[0]}: {len(out)} lines for {len(sent)}", "format")
    return out
