"""A microphone into which the user speaks a file, and a loudspeaker in an empty room."""

import os
import threading
import time

import numpy as np

from parley.media import wav


class InputStream:
    def __init__(self, *, samplerate, blocksize, callback, **_):
        sound = wav.load(os.environ["SPOKEN"])
        assert sound.rate_hz == samplerate
        self._samples, self._block, self._callback = sound.samples, blocksize, callback
        self._step_s = blocksize / samplerate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()

    def _run(self):
        due, at = time.monotonic(), 0
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due += self._step_s
            block = self._samples[at : at + self._block]
            at += self._block
            missing = np.zeros(self._block - len(block), np.float32)
            self._callback(np.concatenate([block, missing])[:, None], self._block, None, None)

    def stop(self):
        self._over.set()
        self._thread.join()

    def close(self):
        pass


class OutputStream:
    def __init__(self, **_):
        pass

    start = stop = close = lambda self: None


def query_devices(kind=None):
    return [{"max_input_channels": 1, "max_output_channels": 1}]
