"""A backbone for workers of a test cluster: the number reader, which may be slow, raise or end the process on a page.

The nodes find it by an entry point, which `nodes.py` writes.
"""

import os
import signal
import time

from anchorfold.backbones.checkpoint import Backbone
from anchorfold.errors import BrokenModelError
from tests.number_reader import NumberReader, read_number

NAME = "number-cluster"
DEADLY, BROKEN, UNREADABLE, UNEXPECTED = 666, 777, 888, 999


class ClusterReader(NumberReader):
    name, fingerprint, default_batch_size = NAME, "number-cluster-1", 4

    def encode_documents(self, images, compressor=None, batch_size=None):
        images = list(images)
        for image in images:
            number = read_number(image)
            if number == DEADLY:
                time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)
            if number == BROKEN:
                raise BrokenModelError("the stand-in is broken.")
            if number == UNREADABLE:
                raise ValueError("the stand-in does not like it")
            if number == UNEXPECTED:
                raise KeyError("surprise")
        return super().encode_documents(images, compressor, batch_size)


def load(_checkpoint):
    return ClusterReader(float(os.environ.get("STAND_IN_SECONDS", "0")))


BACKBONE = Backbone(load)
