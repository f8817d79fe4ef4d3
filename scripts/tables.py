"""`repro table`, under the name that it had."""

import sys

from repro.commands.table import main

if __name__ == "__main__":
    sys.exit(main())
