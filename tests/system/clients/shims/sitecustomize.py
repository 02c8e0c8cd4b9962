"""Between a printed program and the test's server, so that the program stays as printed.

Python imports this module by itself when its folder is on the path. Two things do not hold in a
test: the server is not at localhost:8006, and `soundfile.read(path, samplerate=16000)` is refused
for files that carry their own rate (soundfile allows it for raw files only). So addresses are
redirected to `SERVER_WS_URL`, and the rate is converted, which is what the programs mean.
"""

import os

import soundfile
import soxr
import websockets

_read = soundfile.read
_connect = websockets.connect


def read(file, *arguments, samplerate=None, **options):
    samples, rate_hz = _read(file, *arguments, **options)
    if samplerate is None or samplerate == rate_hz:
        return samples, rate_hz
    return soxr.resample(samples, rate_hz, samplerate), samplerate


def connect(url, *arguments, **options):
    return _connect(
        url.replace("wss://localhost:8006", os.environ["SERVER_WS_URL"]),
        *arguments,
        proxy=None,
        **options,
    )


soundfile.read = read
websockets.connect = connect
