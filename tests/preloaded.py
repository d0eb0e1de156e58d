"""What commands import; they are forked from a process that has it."""

import pyarrow
import pytest
import sentence_transformers
import torch
import transformers
from transformers import ColPaliForRetrieval, ColPaliProcessor

import anchorfold.backbones.base
import anchorfold.backbones.loading
import anchorfold.backbones.nano.retriever
import anchorfold.backbones.retrieval_heads
import anchorfold.cli.app
import anchorfold.explain
import anchorfold.index
import anchorfold.index.index

torch.set_num_threads(1)  # others are at work beside them

__all__ = ["ColPaliForRetrieval", "ColPaliProcessor", "anchorfold", "pyarrow", "pytest",
           "sentence_transformers", "torch", "transformers"]  # fmt: skip
