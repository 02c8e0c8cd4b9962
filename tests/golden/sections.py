"""Who knows a section of the vectors.

A section is a module `tests.golden.section_<name>` with `run(case, check)`; it may raise `Skipped`
with a reason. A section without a module is a failure, not a skip.
"""

import importlib
import importlib.util
from collections.abc import Callable

from tests.golden.case import Case, Checker

Handler = Callable[[Case, Checker], None]


def handler(section: str) -> Handler | None:
    """The function that runs cases of a section."""
    name = f"tests.golden.section_{section}"
    if importlib.util.find_spec(name) is None:
        return None
    module = importlib.import_module(name)
    found: Handler = module.run
    return found
