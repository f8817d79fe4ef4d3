"""`repro errors`, under the name that it had."""

import sys

from repro.commands.errors import main

if __name__ == "__main__":
    sys.exit(main())
