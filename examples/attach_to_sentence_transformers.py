"""Compress inside a sentence-transformers `MultiVectorEncoder`: attached with attention, or as a part of the model.

python examples/attach_to_sentence_transformers.py

The checkpoint here is a tiny random one of ColPali's architecture, so that nothing is downloaded; take
`MultiVectorEncoder("vidore/colpali-v1.3-hf")` for the real one.
"""

import tempfile
import warnings
from pathlib import Path

import numpy as np
from PIL import Image
from sentence_transformers import MultiVectorEncoder

import anchorfold
from anchorfold.integrations.sentence_transformers import CompressorPooling
from anchorfold.testing import tiny


def main() -> None:
    warnings.simplefilter("ignore", anchorfold.errors.UncalibratedWarning)  # nobody calibrates random weights
    generator = np.random.default_rng(0)
    pages = [Image.fromarray(generator.integers(0, 255, (224, 160, 3), dtype=np.uint8)) for _ in range(2)]
    with tempfile.TemporaryDirectory() as work:
        folder = tiny.make("colpali", Path(work) / "colpali")
        encoder = MultiVectorEncoder(str(folder), device="cpu", processor_kwargs={"backend": "pil"})
        print("full:     ", [len(page) for page in encoder.encode_document(pages)], "vectors")

        # AnchorFold reads the encoder's attention: attach installs hooks, detach removes them.
        anchorfold.attach(encoder, anchorfold.AnchorFold(ratio=0.25))
        print("attached: ", [len(page) for page in encoder.encode_document(pages)], "vectors")
        anchorfold.detach(encoder)

        # Methods that need vectors alone can be a module of the model, saved and loaded with it.
        encoder.append(CompressorPooling(anchorfold.SemanticClustering(ratio=0.25)))
        encoder.save_pretrained(str(Path(work) / "small"))
        again = MultiVectorEncoder(
            str(Path(work) / "small"), device="cpu", processor_kwargs={"backend": "pil"}, trust_remote_code=True
        )
        print("a module: ", [len(page) for page in again.encode_document(pages)], "vectors")


if __name__ == "__main__":
    main()
