"""Tables of `benchmarks.foreign_weights`, and criteria that choose a method without labels.

    python -m benchmarks.method_choice FOLDER...           # share of the full index's NDCG@5, paired with k-means
    python -m benchmarks.method_choice FOLDER... --pooled  # one table per folder, over the queries of all corpora
    python -m benchmarks.method_choice FOLDER... --criteria  # one choice per corpus and ratio; --pooled: per folder
    python -m benchmarks.method_choice FOLDER... --windows   # criteria that choose AnchorFold's layers and depth

A criterion ranks the candidate methods of a corpus and a ratio by the scores of pseudo-queries alone. Its regret is the
NDCG@5 of the best candidate minus that of its choice, over real queries. As the best candidate is the best of many on
the same queries, its lead is partly noise: for comparison, "labels of half of the queries" chooses by the NDCG@5 of
every second query and is rated over the other ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from anchorfold.compressors.default import DefaultCompressor
from anchorfold.evaluation.methods import FULL
from anchorfold.evaluation.metrics import interval
from benchmarks.foreign_weights import RATIOS, WINDOW, label_of

REFERENCE = "semantic-clustering"
CANDIDATES = ("anchorfold", "focus-clustering", "spread-fold", REFERENCE)  # with every graph
TOP, CUT = 10, 5

Scores = np.ndarray  # (pages, queries)
Result = dict[str, np.ndarray]
Criterion = Callable[[Scores, Scores, np.ndarray], float]


def score_retention(full: Scores, compressed: Scores, target: np.ndarray) -> float:
    """Return the mean score of the target page relative to the full index."""
    columns = np.arange(len(target))
    return float(np.mean(compressed[target, columns] / full[target, columns].clip(1e-6)))


def pseudo_ndcg(full: Scores, compressed: Scores, target: np.ndarray) -> float:
    """Return the NDCG@5 of the target page."""
    ranks = (compressed > compressed[target, np.arange(len(target))]).sum(0)
    return float(np.where(ranks < CUT, 1 / np.log2(ranks + 2), 0).mean())


def agreement(full: Scores, compressed: Scores, target: np.ndarray) -> float:
    """Return the mean share of the full index's first ten pages that are among the first ten of the compressed one."""
    k = min(TOP, len(full) - 1)
    first, second = (np.argpartition(-s, k, axis=0)[:k] for s in (full, compressed))
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(first.T, second.T, strict=True)]))


def likelihood(full: Scores, compressed: Scores, target: np.ndarray) -> float:
    """Return the mean log-probability of the target page; the full index's deviation per query is the temperature."""
    logits = (compressed - compressed.max(0)) / full.std(0).clip(1e-6)
    return float(np.mean(logits[target, np.arange(len(target))] - np.log(np.exp(logits).sum(0))))


def margin(full: Scores, compressed: Scores, target: np.ndarray) -> float:
    """Return the lead of the target page over the best five other pages, relative to the full index's."""
    leads = []
    for scores in (full, compressed):
        columns = np.arange(len(target))
        others = scores.copy()
        others[target, columns] = -np.inf
        leads.append(scores[target, columns].mean() - np.sort(others, 0)[-CUT:].mean())
    return float(leads[1] / max(leads[0], 1e-6))


CRITERIA: dict[str, Criterion] = {
    "score retention": score_retention,
    "pseudo-query NDCG@5": pseudo_ndcg,
    "agreement with the full index": agreement,
    "likelihood of the page": likelihood,
    "margin of the page": margin,
}
LABELS = "labels of half of the queries"
DEFAULT = "default of unmeasured models"
COMBINATIONS = {
    "retention and agreement": ("score retention", "agreement with the full index"),
    "pseudo-query NDCG@5 and agreement": ("pseudo-query NDCG@5", "agreement with the full index"),
    "likelihood and retention": ("likelihood of the page", "score retention"),
}


def is_candidate(method: str, windows: bool) -> bool:
    """Return whether a criterion may choose a method; with `windows` only AnchorFold's windows and depths."""
    if windows or method.startswith(WINDOW):
        return windows and method.startswith(WINDOW)
    return method.startswith(CANDIDATES) and "raw" not in method and "one step" not in method


def regrets(results: Sequence[Result], ratio: float, windows: bool = False) -> dict[str, tuple[str, float]]:
    """Return the choice of every criterion for some corpora and a ratio, and its regret; also of constant choices.

    One method is chosen for all corpora, by the criterion's mean over them. Regrets are over all queries.
    """
    joined = pool(results)
    row = {name.partition("@")[0]: i for i, name in enumerate(joined["labels"]) if name.endswith(f"@{ratio:g}")}
    names = [n for n in row if is_candidate(n, windows)]
    ndcg = {n: float(joined["ndcg"][row[n]].mean()) for n in names}
    values = {c: dict.fromkeys(names, 0.0) for c in CRITERIA}
    for result in results:
        labels, scores, target = list(result["labels"]), result["pseudo_scores"], result["pseudo_pages"]
        full = scores[labels.index(FULL)]
        for n in names:
            compressed = scores[labels.index(f"{n}@{ratio:g}")]
            for criterion, rate in CRITERIA.items():
                values[criterion][n] += rate(full, compressed, target) / len(results)
    for name, parts in COMBINATIONS.items():
        ranks = [dict(zip(sorted(names, key=values[p].__getitem__), range(len(names)), strict=True)) for p in parts]
        values[name] = {n: float(sum(r[n] for r in ranks)) for n in names}
    choices = {c: max(names, key=v.__getitem__) for c, v in values.items()}
    choices |= {f"always {n}": n for n in names}
    unmeasured = DefaultCompressor(ratio).for_model("", is_causal=bool(results[0]["causal"]))
    default = label_of(unmeasured.name, unmeasured.options.get("graph", "attention"))
    if default in names:
        choices[DEFAULT] = default
    best = max(ndcg.values())
    rated = {c: (n, best - ndcg[n]) for c, n in choices.items()}
    return rated | {LABELS: ("by half", labelled_regret(joined["ndcg"][[row[n] for n in names]]))}


def labelled_regret(ndcg: np.ndarray) -> float:
    """Return the regret of choosing from `(methods, queries)` by one half of the queries, over the other half.

    The mean of both directions is returned.
    """
    halves = [ndcg[:, ::2].mean(1), ndcg[:, 1::2].mean(1)]
    return float(np.mean([b.max() - b[a.argmax()] for a, b in (halves, halves[::-1])]))


def print_table(name: str, result: Result) -> None:
    """Print the share of the full NDCG@5 in percent (score retention), and the paired difference to k-means."""
    labels = list(result["labels"])
    full = result["ndcg"][labels.index(FULL)].mean()
    queries = result["ndcg"].shape[1]
    print(f"\n{name}: {result['pages']} pages, {queries} queries, full index NDCG@5 {full:.1f}\n")
    print("| method | " + " | ".join(f"{1 / r:.0f}x | against k-means" for r in RATIOS) + " |")
    print("|---" * (1 + 2 * len(RATIOS)) + "|")
    for method in dict.fromkeys(n.partition("@")[0] for n in labels if n != FULL and not n.startswith(WINDOW)):
        cells = []
        for ratio in RATIOS:
            i, reference = labels.index(f"{method}@{ratio:g}"), labels.index(f"{REFERENCE}@{ratio:g}")
            difference = result["ndcg"][i] - result["ndcg"][reference]
            low, high = interval(difference)
            retention = np.nanmean(result["retention"][i])
            cells.append(f"{100 * result['ndcg'][i].mean() / full:.1f} ({retention:.1f})")
            cells.append(f"{difference.mean():+.1f} ({low:+.1f} to {high:+.1f})")
        print(f"| {method} | " + " | ".join(cells) + " |")


def print_criteria(groups: dict[str, list[Result]], windows: bool) -> None:
    """Print the regret of every criterion over groups of corpora and ratios, smallest maximum first."""
    by_criterion: dict[str, list[float]] = {}
    for name, results in groups.items():
        for ratio in RATIOS:
            for criterion, (choice, regret) in regrets(results, ratio, windows).items():
                by_criterion.setdefault(criterion, []).append(regret)
                if criterion in CRITERIA:
                    print(f"{name} {1 / ratio:.0f}x {criterion}: {choice} ({regret:.1f})")
    cases = len(groups) * len(RATIOS)
    print(f"\n| criterion | maximum regret | mean | at most 1 point, of {cases} cases |\n|---|---|---|---|")
    for criterion, values in sorted(by_criterion.items(), key=lambda item: max(item[1])):
        if len(values) == cases:
            print(f"| {criterion} | {max(values):.1f} | {np.mean(values):.1f} | {sum(v <= 1 for v in values)} |")


def pool(results: Sequence[Result]) -> Result:
    """Join the queries of several corpora, for the methods that all of them have."""
    labels = [name for name in results[0]["labels"] if all(name in r["labels"] for r in results)]
    rows = [[list(r["labels"]).index(label) for label in labels] for r in results]
    joined = {
        figure: np.concatenate([r[figure][row] for r, row in zip(results, rows, strict=True)], 1)
        for figure in ("ndcg", "retention")
    }
    return {"labels": np.array(labels), "pages": np.array(sum(int(r["pages"]) for r in results)), **joined}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--criteria", action="store_true", help="compare criteria instead of methods")
    parser.add_argument("--windows", action="store_true", help="compare criteria that choose layers and depth")
    parser.add_argument("--pooled", action="store_true", help="one table, or one choice per ratio, per folder")
    arguments = parser.parse_args()
    groups: dict[str, list[Result]] = {}
    for folder in arguments.folders:
        for path in sorted(folder.glob("*.npz")):
            name = folder.name if arguments.pooled else f"{folder.name} {path.stem}"
            groups.setdefault(name, []).append(dict(np.load(path)))
    if arguments.criteria or arguments.windows:
        print_criteria(groups, arguments.windows)
        return
    for name, results in groups.items():
        print_table(name, pool(results))


if __name__ == "__main__":
    main()
