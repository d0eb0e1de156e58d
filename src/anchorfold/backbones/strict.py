"""Weights from a checkpoint, all of them and no others: what does not fit is refused, never filled in by chance.

transformers starts absent weights at random and drops unknown ones, with a log line at most. A retriever made that way
runs, and finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from anchorfold.errors import CheckpointError

# Transformers itself knows of non-persistent buffers (`rotary_emb.inv_freq`, `position_ids`) and of the tied weights
# that a model class declares; it reports neither. Everything else that need not match is one of these.
MAY_BE_ABSENT = {
    r"\.num_batches_tracked$": "a counter of training steps in batch normalisation",
}
NOT_USED = {
    r"(^|\.)lm_head\.weight$": "predicts words; a retriever stops before it, and it is often tied to the embeddings",
}
MAY_BE_ABSENT_IN_TEXT_ENCODERS = {
    r"(^|\.)pooler\.": "makes one vector of a text; late interaction takes its tokens",
}
NAMED = 3  # keys that an error spells out


def load_strictly(cls: Any, name: str, *, not_used: Collection[str] = (), **options: Any) -> Any:
    """`cls.from_pretrained(name, **options)`, or an error that says which weights do not fit.

    Args:
        cls: a transformers model class.
        name: folder or hub name.
        not_used: patterns of weights that this architecture may carry and a retriever never runs.
        options: for `from_pretrained`.
    """
    # Wrong shapes are reported with the rest, rather than raised as a page of text.
    model, report = cls.from_pretrained(name, **options, output_loading_info=True, ignore_mismatched_sizes=True)
    check_report(name, report, not_used)
    return model


def check_loaded(model: Any, name: str, **options: Any) -> None:
    """Refuse a model that another library loaded, if weights of it were not in the checkpoint.

    Weights without a place are no error here: such a checkpoint may hold those of further modules too.
    """
    report = type(model).from_pretrained(
        model.name_or_path, config=model.config, device_map="meta", output_loading_info=True, **options
    )[1]  # on the meta device: names and shapes are compared, no weight is read again
    missing = _others(report["missing_keys"], MAY_BE_ABSENT_IN_TEXT_ENCODERS)
    check_report(name, {"missing_keys": missing})


def check_report(name: str, report: Mapping[str, Any], not_used: Collection[str] = ()) -> None:
    """Refuse what transformers' `output_loading_info` says is missing, unexpected or of another shape."""
    problems = fitting_problems(report, not_used)
    if problems:
        raise CheckpointError(
            f"{name} does not fit its architecture: {problems}. Give a complete checkpoint of a trained retriever (not "
            "of the bare language or vision model), and download it again if it was cut short; weights are never "
            "filled in at random."
        )


def fitting_problems(report: Mapping[str, Any], not_used: Collection[str] = ()) -> str:
    """What does not fit, with the first few keys and their number; nothing if all is well.

    Args:
        report: `missing_keys`, `unexpected_keys`, `mismatched_keys` (key, saved and wanted shape) and `error_msgs`.
        not_used: patterns of weights that may be there all the same.
    """
    shapes = {f"{key} {list(saved)} for {list(expected)}" for key, saved, expected in report.get("mismatched_keys", ())}
    problems = [
        _count(_others(report.get("missing_keys", ()), MAY_BE_ABSENT), "missing"),
        _count(_others(report.get("unexpected_keys", ()), [*NOT_USED, *not_used]), "unknown to it"),
        _count(shapes, "of another shape"),
        *report.get("error_msgs", ()),
    ]
    return "; ".join(problem for problem in problems if problem)


def _others(keys: Collection[str], patterns: Collection[str]) -> list[str]:
    return [key for key in keys if not any(re.search(pattern, key) for pattern in patterns)]


def _count(keys: Collection[str], what: str) -> str:
    """`72 weights missing (a, b, c, ...)`, or nothing."""
    if not keys:
        return ""
    first = sorted(keys)[:NAMED]
    names = ", ".join(first + ["..."] * (len(keys) > len(first)))
    return f"{len(keys)} weight{'s' if len(keys) > 1 else ''} {what} ({names})"
