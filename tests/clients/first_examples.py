"""The first examples of the SDKs' own READMEs: only address, key and model are changed. Runs in the
environment where they are installed, and knows nothing of the server.

    first_examples.py URL CLIENT…     one JSON line for each example, then {"what": "end"}

`examples` has a module for each client, whose public functions are its examples. One that the
server refuses says so, with part of the sentence that its client raises.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any


def examples_of(client: str) -> list[Callable[[], Any]]:
    """Those of a package."""
    module = importlib.import_module(f"examples.{client.replace('-', '_')}")
    return [
        each
        for name, each in vars(module).items()
        if not name.startswith("_") and getattr(each, "__module__", "") == module.__name__
    ]


def outcome(run: Callable[[], Any]) -> str:
    """What went wrong; "": nothing."""
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:1000]
    return ""


def main(url: str, *clients: str) -> None:
    """Run the examples of some clients."""
    os.environ.update(
        OPENAI_API_KEY="sk-any",
        OPENAI_BASE_URL=url,
        OPENAI_API_BASE=url,
        OPENAI_AGENTS_DISABLE_TRACING="1",
        OPENAI_CHAT_MODEL_ID="gpt-5",
        LITELLM_LOCAL_MODEL_COST_MAP="true",
    )
    for client in clients:
        for each in examples_of(client):
            line = {
                "what": "example",
                "client": client,
                "version": version(client),
                "example": each.__name__.replace("_", " "),
                "refused": getattr(each, "refused", ""),
                "problem": outcome(each),
            }
            print(json.dumps(line), flush=True)
    print(json.dumps({"what": "end"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
