"""`python -m parley.settings [--check]`: writes or checks the page of settings."""

import sys

from parley.settings.page import main

sys.exit(main())
