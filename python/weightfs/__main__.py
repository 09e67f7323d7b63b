"""`python -m weightfs`: runs the program with the same arguments."""

import os
import sys

from ._program import program

try:
    os.execv(program(), ["weightfs", *sys.argv[1:]])
except FileNotFoundError as error:
    sys.exit(f"weightfs: {error}")
