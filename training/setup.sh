#!/usr/bin/env bash
# The synthesisers that make the training speech (Debian). They are used as programs; nothing of
# them is shipped. espeak-ng: GPL-3; flite, festival and their voices: permissive (CMU, Edinburgh).
set -euo pipefail
apt-get install -y --no-install-recommends \
  libespeak-ng1 espeak-ng-data libflite1 festival festvox-kdlpc16k
