"""`repro calibrate`, under the name that it had."""

import sys

from repro.commands.calibrate import main

if __name__ == "__main__":
    sys.exit(main())
