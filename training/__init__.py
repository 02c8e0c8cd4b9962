"""How bundled weights are made and judged. Not part of the installed package."""
