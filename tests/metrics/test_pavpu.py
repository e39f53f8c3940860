"""PAvPU against counts by hand and by loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lbdrop.errors import DropoutError
from lbdrop.metrics import (
    PAvPUCounts,
    patch_pavpu_counts,
    patches,
    pavpu_at_mean_entropy,
    pavpu_counts,
    pavpu_over_sweep,
    sweep,
)


def four(counts: PAvPUCounts, k: int = 0) -> tuple[int, int, int, int]:
    return int(counts.n_ac[k]), int(counts.n_au[k]), int(counts.n_ic[k]), int(counts.n_iu[k])


def counts_by_loop(entropy: np.ndarray, correct: np.ndarray, threshold: float) -> tuple[int, int, int, int]:
    cells = {(right, unsure): 0 for right in (True, False) for unsure in (False, True)}
    for h, right in zip(entropy, correct, strict=True):
        cells[bool(right), bool(h > threshold)] += 1
    return cells[True, False], cells[True, True], cells[False, False], cells[False, True]


def patches_by_loop(
    entropy: np.ndarray, correct: np.ndarray, valid: np.ndarray, window: int
) -> tuple[list[float], list[bool]]:
    means, accurate = [], []
    for image in range(entropy.shape[0]):
        for top in range(0, entropy.shape[1], window):
            for left in range(0, entropy.shape[2], window):
                place = image, slice(top, top + window), slice(left, left + window)
                counted = valid[place]
                if counted.any():
                    means.append(entropy[place][counted].mean())
                    accurate.append(bool(correct[place][counted].mean() > 0.5))
    return means, accurate


def random_case(seed: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    entropy = 2 * torch.rand(shape, generator=generator, dtype=torch.float64)
    correct = torch.rand(shape, generator=generator) < 0.6
    return entropy, correct, torch.rand(shape, generator=generator) < 0.6


def test_counts_of_a_case_computed_by_hand():
    # entropy  .1  .3  .5  .7  .9
    # right     ✓   ✓   ✗   ✓   ✗
    entropy = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)
    correct = torch.tensor([True, True, False, True, False])
    # θ = .6: certain are .1 ✓, .3 ✓, .5 ✗; uncertain .7 ✓, .9 ✗      → ac 2, au 1, ic 1, iu 1, PAvPU 3/5
    # θ = .5: the entropy .5 does not exceed it and stays certain     → the same
    # θ = .4: certain are .1 ✓, .3 ✓; uncertain .5 ✗, .7 ✓, .9 ✗      → ac 2, au 1, ic 0, iu 2, PAvPU 4/5
    # θ = .9: all certain                                             → ac 3, au 0, ic 2, iu 0, PAvPU 3/5
    # θ = 0:  all uncertain                                           → ac 0, au 3, ic 0, iu 2, PAvPU 2/5
    counts = pavpu_counts(entropy, correct, torch.tensor([0.6, 0.5, 0.4, 0.9, 0.0], dtype=torch.float64))
    assert [four(counts, k) for k in range(5)] == [(2, 1, 1, 1), (2, 1, 1, 1), (2, 1, 0, 2), (3, 0, 2, 0), (0, 3, 0, 2)]
    assert counts.pavpu.tolist() == [3 / 5, 3 / 5, 4 / 5, 3 / 5, 2 / 5]
    assert counts.accurate_given_certain[2] == 1
    assert counts.uncertain_given_inaccurate[0] == 1 / 2
    # The mean entropy is .5: PAvPU 3/5.
    assert float(pavpu_at_mean_entropy(entropy, correct)) == 3 / 5
    # Three thresholds from 0 to .8: θ = 0 → 2/5, θ = .4 → 4/5, θ = .8 → ac 3, au 0, ic 1, iu 1 → 4/5.
    assert float(pavpu_over_sweep(entropy, correct, 0.0, 0.8, steps=3)) == pytest.approx((2 / 5 + 4 / 5 + 4 / 5) / 3)


def test_patches_with_void_computed_by_hand():
    # One image of 4 × 4 in four windows of 2 × 2; · is void.
    # entropy            right
    # .1 .3 | ·  .8      ✓ ✓ | · ✓      window 1: mean .2, 2 of 3 right → accurate; its void pixel (9) leaves the mean
    # .2  · | ·  .4      ✗ · | · ✗      window 2: mean .6, 1 of 2 right: not more than half → inaccurate
    # ------+------      ----+----
    #  ·  · | .5 .5      · · | ✓ ✓      window 3: all void → skipped
    #  ·  · | .7 .7      · · | ✓ ✗      window 4: mean .6, 3 of 4 right → accurate
    entropy = torch.tensor([[[0.1, 0.3, 9, 0.8], [0.2, 9, 9, 0.4], [9, 9, 0.5, 0.5], [9, 9, 0.7, 0.7]]]).double()
    correct = torch.tensor([[[1, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]]]).bool()
    valid = entropy < 9
    means, accurate = patches(entropy, correct, 2, valid)
    assert means.tolist() == pytest.approx([0.2, 0.6, 0.6])
    assert accurate.tolist() == [True, False, True]
    # θ = .5: window 1 is ac, 2 is iu, 4 is au → PAvPU 2/3. θ = .7: ac, ic, ac → 2/3. θ = .1: au, iu, au → 1/3.
    counts = patch_pavpu_counts(entropy, correct, torch.tensor([0.5, 0.7, 0.1]), 2, valid)
    assert [four(counts, k) for k in range(3)] == [(1, 1, 0, 1), (2, 0, 1, 0), (0, 2, 0, 1)]
    assert counts.pavpu.tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 3])


@pytest.mark.parametrize("seed", range(5))
def test_counts_agree_with_a_loop_for_thresholds_in_any_order(seed: int):
    entropy, correct, _ = random_case(seed, 200)
    thresholds = torch.cat([entropy[:3], 2 * torch.rand(6, dtype=torch.float64), torch.tensor([-1.0, 9.0])])
    counts = pavpu_counts(entropy, correct, thresholds)
    for k, threshold in enumerate(thresholds.tolist()):
        assert four(counts, k) == counts_by_loop(entropy.numpy(), correct.numpy(), threshold)


@pytest.mark.parametrize("shape", [(2, 8, 6), (3, 7, 5), (1, 1, 1)])
@pytest.mark.parametrize("window", [1, 2, 3, 20])
def test_patches_agree_with_a_loop_that_keeps_the_edges(shape: tuple[int, ...], window: int):
    entropy, correct, valid = random_case(window, *shape)
    valid[0, 0, 0] = True
    means, accurate = patches(entropy, correct, window, valid)
    expected_means, expected = patches_by_loop(entropy.numpy(), correct.numpy(), valid.numpy(), window)
    np.testing.assert_allclose(means, expected_means)
    assert accurate.tolist() == expected
    everything = torch.ones_like(valid)
    assert torch.equal(patches(entropy, correct, window)[0], patches(entropy, correct, window, everything)[0])


def test_values_of_void_pixels_do_not_matter():
    entropy, correct, valid = random_case(0, 2, 6, 6)
    thresholds = sweep(0.0, 2.0)
    changed = patch_pavpu_counts(entropy.where(valid, math.inf), correct ^ ~valid, thresholds, 2, valid)
    assert torch.equal(changed.pavpu, patch_pavpu_counts(entropy, correct, thresholds, 2, valid).pavpu)


def test_images_of_void_alone_add_no_counts():
    entropy, correct, _ = random_case(0, 2, 4, 4)
    counts = patch_pavpu_counts(entropy, correct, torch.tensor([0.5]), valid=torch.zeros_like(correct))
    assert int(counts.total) == 0
    assert bool(counts.pavpu.isnan())


def test_windows_of_one_pixel_are_examples():
    entropy, correct, _ = random_case(1, 2, 4, 5)
    thresholds = sweep(0.0, 2.0)
    per_pixel = pavpu_counts(entropy.flatten(), correct.flatten(), thresholds)
    assert torch.equal(patch_pavpu_counts(entropy, correct, thresholds, window=1).pavpu, per_pixel.pavpu)


def test_sweep_has_both_ends_exactly():
    for lowest, highest in np.random.default_rng(0).lognormal(-2, 2, (200, 2)):
        ends = sweep(min(lowest, highest), max(lowest, highest))
        assert len(ends) == 11
        assert (float(ends[0]), float(ends[-1])) == (min(lowest, highest), max(lowest, highest))
        np.testing.assert_allclose(ends, np.linspace(float(ends[0]), float(ends[-1]), 11))


def test_equal_entropies_are_all_certain_at_their_mean():
    for value in (0.1, 0.3, 1.7):
        entropy = torch.full((7,), value, dtype=torch.float64)
        assert float(pavpu_at_mean_entropy(entropy, torch.arange(7) < 5)) == 5 / 7


def test_pavpu_at_mean_entropy_and_over_sweep_agree_with_a_loop():
    entropy, correct, _ = random_case(3, 300)

    def value(threshold: float) -> float:
        ac, _, _, iu = counts_by_loop(entropy.numpy(), correct.numpy(), threshold)
        return (ac + iu) / 300

    assert float(pavpu_at_mean_entropy(entropy, correct)) == pytest.approx(value(float(entropy.numpy().mean())))
    expected = [value(0.2 + t / 10 * (1.5 - 0.2)) for t in range(11)]
    assert float(pavpu_over_sweep(entropy, correct, 0.2, 1.5)) == pytest.approx(np.mean(expected))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 3), st.booleans()), min_size=1, max_size=30),
    st.lists(st.floats(-1, 4), min_size=1, max_size=5),
)
def test_counts_sum_to_n_and_certain_grows_with_the_threshold(pairs: list[tuple[float, bool]], levels: list[float]):
    entropy = torch.tensor([h for h, _ in pairs], dtype=torch.float64)
    correct = torch.tensor([right for _, right in pairs])
    counts = pavpu_counts(entropy, correct, torch.tensor(sorted(levels), dtype=torch.float64))
    assert bool((counts.total == len(pairs)).all())
    assert bool((counts.n_ac + counts.n_au == correct.sum()).all())
    certain = counts.n_ac + counts.n_ic
    assert bool((certain.diff() >= 0).all())
    assert bool(((counts.pavpu >= 0) & (counts.pavpu <= 1)).all())


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 29), st.integers(0, 2**31))
def test_counts_of_batches_add_up(cut: int, seed: int):
    entropy, correct, _ = random_case(seed, 30)
    thresholds = sweep(0.0, 2.0)
    parts = [pavpu_counts(entropy[part], correct[part], thresholds) for part in (slice(cut), slice(cut, None))]
    whole = pavpu_counts(entropy, correct, thresholds)
    assert [four(parts[0] + parts[1], k) for k in range(11)] == [four(whole, k) for k in range(11)]


@pytest.mark.usefixtures("without_type_checks")
def test_wrong_input_is_an_error_with_the_next_step():
    entropy, correct, _ = random_case(0, 4)
    at = torch.tensor([0.5])
    refused = [
        (lambda: pavpu_counts(entropy.mean()[None], correct, at), "one per batch"),
        (lambda: pavpu_counts(entropy, correct.double(), at), "bool correct"),
        (lambda: pavpu_counts(entropy[:0], correct[:0], at), "at least one prediction"),
        (lambda: pavpu_counts(entropy.where(correct, math.nan), correct & False, at), "NaN"),
        (lambda: pavpu_counts(entropy, correct, at[0]), "thresholds.*sweep"),
        (lambda: pavpu_counts(entropy, correct, at * math.nan), "thresholds.*sweep"),
        (lambda: patches(entropy.view(1, 2, 2), correct.view(1, 2, 2), 0), "window"),
        (lambda: patches(entropy.view(1, 2, 2), correct.view(1, 2, 2), 2, correct), "labels != void"),
        (lambda: sweep(1.0, 0.5), "lowest ≤ highest"),
        (lambda: sweep(math.nan, 0.5), "validation"),
        (lambda: sweep(0.0, 0.5, steps=1), "2 steps"),
        (lambda: pavpu_at_mean_entropy(entropy[:0], correct[:0]), "at least one prediction"),
    ]
    for call, says in refused:
        with pytest.raises(DropoutError, match=says):
            call()
