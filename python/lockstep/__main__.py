"""`lockstep`, and `python -m lockstep`: the program that the wheel carries, in this process's place."""

import os
import sys

from ._abi import LockstepError
from ._program import carried, find


def main() -> None:
    """Becomes the program; comes back only with an error."""
    try:
        program = carried() or find()
        if os.path.realpath(program) == os.path.realpath(sys.argv[0]):  # PATH has nothing but this very script
            raise LockstepError("this package carries no program; LOCKSTEP_PROGRAM says where one is", "io")
        os.execv(program, [program, *sys.argv[1:]])
    except (LockstepError, OSError) as error:
        sys.exit(f"lockstep: {error}")


if __name__ == "__main__":
    main()
