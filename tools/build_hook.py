"""Build hook of hatchling: builds the pages before a wheel, also before an editable one."""

import subprocess
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PagesHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Builds the pages; see `pages.py`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling with an unpacked source tree as `self.root`."""
        subprocess.run([sys.executable, "-m", "tools.pages"], cwd=self.root, check=True)
