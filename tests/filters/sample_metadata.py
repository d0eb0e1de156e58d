"""Metadata of the documents of the `index` fixture."""

import datetime
from typing import Any

A_METADATA: dict[str, Any] = {
    "year": 2024, "team": "sales", "signed": True, "due": datetime.date(2024, 2, 1), "rate": 0.5
}  # fmt: skip
B_METADATA: dict[str, Any] = {"year": 2023, "team": "legal", "signed": False}


def matching_pages(index: Any, where: str | None, **options: Any) -> list[tuple[str, int]]:
    """File names and numbers of the pages that a filter leaves."""
    return sorted((hit.document.split("/")[-1], hit.page) for hit in index.search("page 12", where=where, **options))
