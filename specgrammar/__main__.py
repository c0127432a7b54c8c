"""`python -m specgrammar` is the command line."""

import sys

from specgrammar.cli.main import main

sys.exit(main())
