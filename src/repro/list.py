"""`repro list [GROUP [NAME]]`: what one can choose, with a few words each."""

import sys

from repro.experiments.guide.listing import main

if __name__ == "__main__":
    sys.exit(main())
