"""Modules that commands import, for processes that are forked."""

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
import anchorfold.databases.qdrant_store
import anchorfold.explanation
import anchorfold.indexes
import anchorfold.indexes.index

torch.set_num_threads(1)  # others are at work beside them

__all__ = ["ColPaliForRetrieval", "ColPaliProcessor", "anchorfold", "pyarrow", "pytest",
           "sentence_transformers", "torch", "transformers"]  # fmt: skip
