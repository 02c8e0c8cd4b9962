"""The `parley` command; `python -m parley` is the same."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, even while modules are being
    imported."""
    try:
        from parley import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
