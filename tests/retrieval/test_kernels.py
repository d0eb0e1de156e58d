"""Kernels against MaxSim in float64 of the stored codes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anchorfold.errors import InvalidArgumentError
from anchorfold.quantization.codec import BITS, Coding
from anchorfold.retrieval import kernels
from anchorfold.retrieval.kernels import Tokens, maxsim, rescore
from tests.retrieval.kernels import available_kernels, each_kernel

ROOT = Path(__file__).parents[2]


def random_case(rng, dim, bits, most_tokens=64):
    """Ragged pages, some of them empty, a list of pages, and some queries."""
    lengths = rng.integers(0, 90, int(rng.integers(1, 40)))
    lengths[rng.random(len(lengths)) < 0.1] = 0
    starts = np.concatenate(([0], lengths.cumsum())).astype(np.int64)
    vectors = rng.normal(size=(int(starts[-1]), dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    coding = Coding(dim, bits)
    tokens = Tokens.of([rng.normal(size=(int(n), dim)) / dim**0.5 for n in rng.integers(0, most_tokens, 3)], coding)
    pages = np.sort(rng.choice(len(lengths), int(rng.integers(1, len(lengths) + 1)), replace=False))
    return coding, *coding.encode(vectors), starts, pages, tokens


def exact_scores(coding, codes, scales, starts, pages, tokens):
    """MaxSim of the stored codes in float64."""
    levels = coding.unpack(codes).astype(np.float64)
    vectors = levels if coding.is_float else levels * scales[:, None].astype(np.float64)
    products = vectors @ tokens.values.astype(np.float64).T
    scores = np.full((len(tokens.starts) - 1, len(pages)), -np.inf)
    for query, (a, b) in enumerate(zip(tokens.starts[:-1], tokens.starts[1:], strict=True)):
        for i, page in enumerate(pages):
            rows = products[starts[page] : starts[page + 1], a:b]
            scores[query, i] = 0 if a == b else rows.max(0).sum() if len(rows) else -np.inf
    return scores


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [3, 24, 100, 128, 129, 320, 640])
def test_scores_are_within_the_error_bound_of_exact_scores(bits, dim):
    rng = np.random.default_rng(bits * dim)
    for _ in range(3):
        case = random_case(rng, dim, bits)
        expected = exact_scores(*case)
        filled = np.isfinite(expected)
        expected = np.where(filled, expected, 0)
        for name in each_kernel():
            scores, errors = maxsim(*case)
            assert np.array_equal(np.isfinite(scores), filled), name
            allowed = errors[:, None] + 1e-5 * (1 + np.abs(expected))
            assert (np.abs(scores - expected) <= allowed)[filled].all(), name


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_large_dimensions(bits):
    case = random_case(np.random.default_rng(1), 3072, bits, most_tokens=5)
    expected = exact_scores(*case)
    for name in each_kernel():
        scores, errors = maxsim(*case)
        assert np.allclose(scores, expected, atol=float(errors.max()) + 1e-4), name


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [3, 24, 129, 320])
def test_all_kernels_rescore_pages_to_the_same_bits(bits, dim):
    rng = np.random.default_rng(bits * dim)
    coding, codes, scales, starts, pages, _ = random_case(rng, dim, bits)
    query = rng.normal(size=(int(rng.integers(1, 40)), dim)) / dim**0.5
    values = Tokens.of([query], coding).values
    pages = pages[starts[pages + 1] > starts[pages]]
    case = coding, codes, scales, starts, pages, Tokens(values, np.array([0, len(values)]))
    scores = [rescore(*case[:5], values) for _ in each_kernel()]
    assert all(np.array_equal(scores[0], others) for others in scores)
    assert np.allclose(scores[0], exact_scores(*case)[0], atol=1e-5)
    if len(pages):
        assert rescore(*case[:4], pages[-1:], values) == scores[0][-1:]


@pytest.mark.parametrize("length", [1e-12, 1.0, 3e4])
def test_rows_of_any_length(length):
    vectors = np.random.default_rng(6).normal(size=(30, 200)).astype(np.float32)
    vectors *= length / np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[7], vectors[8, 1:] = 0, 0
    coding = Coding(200, 16)
    tokens = Tokens.of([np.random.default_rng(7).normal(size=(20, 200))], coding)
    case = coding, *coding.encode(vectors), np.array([0, 7, 8, 30]), np.arange(3), tokens
    expected = exact_scores(*case)
    for name in each_kernel():
        scores, errors = maxsim(*case)
        assert (np.abs(scores - expected) <= errors[0] + 1e-5 * np.abs(expected)).all(), name


def test_damaged_floats_do_not_affect_other_pages():
    vectors = np.random.default_rng(8).normal(size=(40, 128)).astype(np.float32)
    vectors[3, 5], vectors[4, 6] = np.nan, np.inf
    coding = Coding(128, 16)
    tokens = Tokens.of([np.random.default_rng(9).normal(size=(12, 128))], coding)
    case = coding, *coding.encode(vectors), np.array([0, 10, 20, 40]), np.arange(3), tokens
    for _ in each_kernel():
        assert np.allclose(maxsim(*case)[0][0, 1:], exact_scores(*case)[0, 1:], rtol=1e-3)


def test_queries_with_nan_are_refused():
    with pytest.raises(InvalidArgumentError, match="NaN or infinite"):
        Tokens.of([np.full((2, 8), np.nan)], Coding(8, 16))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_can_search():
    case = random_case(np.random.default_rng(10), 128, 8)
    expected = maxsim(*case)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(maxsim(*case)[0], expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("bits", [16, 8, 4, 2, 1])
def test_error_bounds_are_small(bits):
    coding, codes, scales, starts, pages, _ = random_case(np.random.default_rng(2), 128, bits)
    tokens = Tokens.of([np.random.default_rng(3).normal(size=(8, 128)) / 128**0.5], coding)
    for _ in each_kernel():
        assert maxsim(coding, codes, scales, starts, pages, tokens)[1][0] < 0.02


@pytest.mark.skipif(available_kernels() == ["numpy"], reason="the kernels were not compiled")
def test_the_number_of_threads_does_not_change_scores(monkeypatch):
    case = random_case(np.random.default_rng(4), 128, 8)
    monkeypatch.setattr(kernels, "processors", lambda: 1)
    expected = maxsim(*case)
    monkeypatch.setattr(kernels, "processors", lambda: 7)
    for scores, others in zip(maxsim(*case), expected, strict=True):
        assert np.array_equal(scores, others)


def test_an_unknown_kernel_is_refused(monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, "sse9")
    kernels.kernel.cache_clear()
    with pytest.raises(InvalidArgumentError, match=r"ANCHORFOLD_KERNEL=sse9.*Choose one of numpy"):
        kernels.kernel()
    kernels.kernel.cache_clear()


def test_numpy_is_used_if_the_library_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "LIBRARY", tmp_path / "missing.so")
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    for function in (kernels.kernel, kernels._library):
        function.cache_clear()
    assert kernels.kernel() == "numpy"
    for function in (kernels.kernel, kernels._library):
        function.cache_clear()


def test_a_build_without_a_compiler_has_no_library_and_does_not_fail(tmp_path):
    pytest.importorskip("hatchling")
    code = (
        "import hatch_build; from types import SimpleNamespace as N; said = []\n"
        "hook = N(target_name='wheel', root='.', app=N(display_warning=said.append)); data = {'force_include': {}}\n"
        "hatch_build.KernelBuildHook.initialize(hook, 'standard', data)\n"
        "assert data == {'force_include': {}} and 'will use NumPy' in said[0], (data, said)"
    )
    environment = {**os.environ, "CC": str(tmp_path / "no-compiler"), "PYTHONPATH": str(ROOT)}
    environment.pop("ANCHORFOLD_REQUIRE_KERNELS", None)
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
def test_all_kernels_sum_the_same_gains(kind):
    rng = np.random.default_rng(5)
    parts = [np.sort(rng.choice(300, int(n), replace=False)) for n in rng.integers(0, 40, 50)]
    bounds = np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int64)
    pages = np.concatenate(parts).astype(kind)
    probed = np.stack([rng.choice(50, 8, replace=False) for _ in range(300)])  # more tokens than a byte can count
    values = np.sort(rng.random((300, 8)).astype(np.float32), axis=1)
    expected = np.zeros(300)
    for lists, gains in zip(probed, values, strict=True):
        best = np.zeros(300)
        for part, gain in zip(lists, gains, strict=True):
            best[parts[part]] = np.maximum(best[parts[part]], gain)
        expected += best
    for _ in each_kernel():
        assert np.allclose(kernels.sum_gains(bounds, pages, probed, values, 300), expected, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 40, 9_000])
def test_the_nth_largest_of_many_values(n):
    rng = np.random.default_rng(n)
    values = rng.normal(size=10_007).astype(np.float32)
    assert kernels.nth_largest(values, n) == np.sort(values)[-n]
    values = np.round(values)  # ties
    values[rng.random(len(values)) < 0.999] = -np.inf  # fewer finite values than n
    assert kernels.nth_largest(values, n) == np.sort(values)[-n]


@pytest.mark.parametrize("bits", BITS)
def test_lists_of_distant_pages_score_like_all_pages(bits):
    rng = np.random.default_rng(11)
    coding, codes, scales, starts, _, _ = random_case(rng, 128, bits)
    starts = np.concatenate((starts, [starts[-1]]))
    every = np.arange(len(starts) - 1)
    for count in (1, 2, 5, 13, 20, 33, 64):
        tokens = Tokens.of([rng.normal(size=(count, 128)) / 128**0.5], coding)
        for name in each_kernel():
            expected = maxsim(coding, codes, scales, starts, every, tokens)[0]
            scores = maxsim(coding, codes, scales, starts, every[::-3].copy(), tokens)[0]
            if name == "numpy":
                assert np.allclose(scores, expected[:, ::-3], rtol=1e-5)
            else:
                assert np.array_equal(scores, expected[:, ::-3]), name
