"""Trainer for pairs: MaxSim against all pages of the batch, validation by NDCG@5, loadable checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import Trainer, TrainerControl, TrainingArguments

from anchorfold.backbones.colqwen import ColQwen
from anchorfold.compressors import AGC
from training.colqwen25.collator import PairCollator
from training.colqwen25.curves import CurveWriter
from training.colqwen25.gathering import gather_pages
from training.colqwen25.losses import batch_scores, contrastive_loss
from training.colqwen25.model import clustered_pages, export, saliency_of_pages
from training.colqwen25.pairs import TrainingData
from training.colqwen25.recipe import Recipe
from training.colqwen25.validation import ndcg_at_5


class PairTrainer(Trainer):
    """Trains `model`, the adapters of `retriever`, with a recipe."""

    loss_is_scaled_for_ga = False  # a mean over the batch
    control: Any

    def __init__(
        self,
        retriever: ColQwen,
        model: PeftModel,
        recipe: Recipe,
        data: TrainingData,
        args: TrainingArguments,
    ) -> None:
        self.retriever, self.recipe, self.data = retriever, recipe, data
        super().__init__(
            model=model,
            args=args,
            data_collator=PairCollator(retriever),
            train_dataset=data.rows,
            eval_dataset=data.validation.queries,
            callbacks=[CurveWriter(Path(args.output_dir))],
        )

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Score the queries of this process against the pages of all processes."""
        query_mask = inputs["query_mask"]
        queries = model(**inputs["queries"]).float()
        pages, page_mask, keys, first = gather_pages(*self._pages(model, inputs), inputs["keys"])
        scores = batch_scores(queries, query_mask, pages, page_mask)
        known = None
        if self.recipe.loss.mask_known_answers:
            known = (keys[None, :, None] == inputs["relevant"][:, None, :]).any(-1)
        answers = first + torch.arange(len(scores), device=scores.device)
        return contrastive_loss(scores, query_mask.sum(1), answers, known, self.recipe.loss)

    def _pages(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Encode the pages of this process: `(B, P, d)` vectors and a mask `(B, P)`."""
        pages, visual = inputs["pages"], inputs["visual"]
        if self.recipe.agc.tokens:
            vectors, saliency = saliency_of_pages(self.retriever, model, pages, visual)
            return clustered_pages(vectors.float(), visual, saliency, self.recipe.agc.cap)
        vectors = model(**pages).float()
        return vectors, visual if self.recipe.loss.page_vectors == "visual" else pages["attention_mask"].bool()

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Compute NDCG@5 on held-out pages, compressed with AGC if the model is trained for it."""
        self.model.eval()
        compressor = AGC(cap=self.recipe.agc.cap) if self.recipe.agc.tokens else None
        batch_size = self.args.per_device_eval_batch_size
        metrics = {
            f"{metric_key_prefix}_ndcg_at_5": ndcg_at_5(self.retriever, self.data.validation, compressor, batch_size)
        }
        self.log(metrics)
        self.control: TrainerControl = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save a checkpoint as a folder that `anchorfold.load` reads."""
        if self.args.should_save:
            export(self.retriever, self.model, Path(output_dir or self.args.output_dir))
