import statistics

import pytest

from anchorfold.attention.layer_settings import PAPER
from anchorfold.compressors import COMPRESSORS, compressor_names
from anchorfold.evaluation import paper


def test_every_table_reads():
    assert all(paper.table(name) for name in paper.TABLES)
    with pytest.raises(ValueError, match="no table"):
        paper.table("weather")


def test_data_sets_average_to_the_benchmarks():
    for row in paper.table("benchmarks"):
        parts = [
            float(r["ndcg"]) for r in paper.table("datasets")
            if all(r[k] == row[k] for k in ("benchmark", "backbone", "method", "ratio"))
        ]  # fmt: skip
        assert len(parts) == (10 if row["benchmark"] == "vidore-v1" else 4)
        assert statistics.mean(parts) == pytest.approx(float(row["ndcg"]), abs=0.11), row


def test_retention_is_the_ratio_to_the_full_index():
    for row in paper.table("benchmarks"):
        full = paper.reported(row["benchmark"], row["backbone"], "none", 1.0) or 0.0
        assert 100 * float(row["ndcg"]) / full == pytest.approx(float(row["retention"]), abs=0.16)


def test_names_are_ours():
    assert {r["method"] for r in paper.table("datasets")} <= set(compressor_names())
    raw = {r["method"] for r in paper.table("datasets") if not COMPRESSORS[r["method"]].normalize}
    assert raw == {"semantic-clustering-raw", "1d-pooling-raw"}
    assert {r["backbone"] for r in paper.table("benchmarks")} == set(PAPER)
    for row in paper.table("calibration"):
        if row["steps"] == "6":
            first, last = map(int, row["window"].split("-"))
            assert PAPER[row["backbone"]].window == (first, last)


def test_cells():
    assert paper.reported("vidore-v2", "colqwen2.5", "anchorfold", 0.2) == 60.3
    assert paper.reported("vidore-v2", "colqwen2.5", "anchorfold", 0.2, "ESG Reports") == 59.7
    assert paper.reported("vidore-v2", "nano", "anchorfold", 0.2) is None
