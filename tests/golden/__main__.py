"""`python -m tests.golden --cases DIR`: compare the tiny model with a folder of golden vectors."""

import sys

import torch
from tests.golden.runner import main

torch.set_num_threads(1)
with torch.inference_mode():
    sys.exit(main())
