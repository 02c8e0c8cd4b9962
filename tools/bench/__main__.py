"""`python -m tools.bench`."""

from __future__ import annotations

import sys

from tools.bench import app

from parley.cli import explain
from parley.errors import ParleyError

if __name__ == "__main__":
    try:
        app(prog_name="python -m tools.bench")
    except ParleyError as error:
        sys.exit(explain(error))
