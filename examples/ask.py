"""One question, one answer: python examples/ask.py [URL]"""

import sys

from parley.client import sync

URL = sys.argv[1] if len(sys.argv) > 1 else "https://localhost:8006"

with sync.connect(URL, insecure=True) as server:
    answer = server.ask("What is the capital of France?")
    print(answer.text)
