"""The `parley` command; `python -m parley` is the same."""

import sys

from parley.importing import keep_reloads


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, even while modules are being
    imported."""
    if not {"serve", "gateway", "worker"}.isdisjoint(sys.argv):
        keep_reloads()
    try:
        from parley import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
