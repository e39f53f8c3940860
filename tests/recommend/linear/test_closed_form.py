"""EASE and EDLAE against brute force: the closed form, dropout enumerated over all masks, and what held-out users teach."""

import itertools

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.data.splits import Split, split_users
from lbdrop.recommend.linear.closed_form import EASE, EDLAE, check_memory, invert


@pytest.fixture(scope="module")
def shop() -> Split:
    return split_users(Interactions.from_frame(generate_shop(users=500, items=60, groups=4).interactions), 80)


@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_edlae_minimises_the_squared_error_under_dropout_over_all_masks(balance: float) -> None:
    rate, x = 0.3, np.array([[1, 1, 0, 1], [0, 1, 1, 0], [1, 1, 1, 0], [1, 0, 0, 1]], float)
    model = EDLAE(rate, 0.5, balance=balance, dtype=torch.float64, device="cpu").fit(csr_array(x))
    fitted, n = model.state["weights"].numpy(), x.sum(1)
    user = n**-balance * n.sum() / (n ** (1 - balance)).sum()  # likes keep their sum
    np.testing.assert_allclose(user @ x.sum(1), x.sum())
    for target in range(4):
        others = [item for item in range(4) if item != target]
        normal, right = 0.5 * np.eye(3), np.zeros(3)
        for mask in itertools.product((0.0, 1.0), repeat=3):
            weight = np.prod([1 - rate if kept else rate for kept in mask])
            inputs = x[:, others] * np.array(mask) / (1 - rate)
            normal += weight * inputs.T @ (user[:, None] * inputs)
            right += weight * inputs.T @ (user * x[:, target])
        atol = 1e-6 if balance else 1e-12  # weights of users are float32
        np.testing.assert_allclose(fitted[others, target], np.linalg.solve(normal, right), atol=atol)


def test_ease_is_edlae_without_dropout(shop: Split) -> None:
    ease = EASE(40.0, device="cpu").fit(shop.train.rows).state
    edlae = EDLAE(0.0, 40.0, balance=0.0, device="cpu").fit(shop.train.rows).state
    assert list(ease) == ["weights"]
    assert edlae["weights"].equal(ease["weights"])
    assert edlae["rates"].eq(0).all()


@pytest.mark.filterwarnings("ignore:edlae. the drop rate ran to the bound")  # or not, by the last digit
def test_held_out_users_join_the_others_once_rates_are_learned(shop: Split) -> None:
    learned = EDLAE(balance=0.0, device="cpu").fit(shop.train.rows, shop.validation)
    assert learned.ridge is not None
    everybody = csr_array(
        np.vstack([m.toarray() for m in (shop.train.rows, shop.validation.fold_in + shop.validation.held_out)])
    )
    again = EDLAE(learned.ridge.rate, learned.ridge.regularisation, balance=0.0, device="cpu").fit(everybody)
    torch.testing.assert_close(learned.state["weights"], again.state["weights"])
    torch.testing.assert_close(learned.state["rates"], again.state["rates"])


def test_edlae_without_held_out_users_says_what_it_takes(shop: Split) -> None:
    with pytest.warns(UserWarning, match=r"edlae: want held-out users .* the rate is 0.5 and the regularisation 100"):
        EDLAE(device="cpu").fit(shop.train.rows)


@pytest.mark.parametrize("size", [5, 1025])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inverse_is_the_inverse_in_the_same_memory(size: int, dtype: torch.dtype) -> None:
    random = torch.rand(size, size, dtype=dtype, generator=torch.Generator().manual_seed(0))
    matrix = random @ random.T + size * torch.eye(size, dtype=dtype)
    expected, place = torch.linalg.inv(matrix), matrix.data_ptr()
    found = invert(matrix)
    torch.testing.assert_close(found, expected)
    assert found.data_ptr() == place
    assert found.equal(found.T)


def test_catalogue_too_large_for_memory_is_an_error_before_any_work() -> None:
    with pytest.raises(DropoutError, match=r"all pairs of 10,000,000 items: want 372,529\.0 GiB of memory"):
        check_memory(10_000_000, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rate": 1.0}, "rate: want less than 1, got 1"),
        ({"rate": -0.1}, "rate: want at least 0"),
        ({"regularisation": 0.0}, "regularisation: want more than 0"),
        ({"balance": 1.5}, "balance: want at most 1, got 1.5"),
        ({"per": "user"}, "per: want model, popularity or item, got 'user'"),
        ({"per": "item", "rate": 0.2}, "per='item': want a learned rate"),
    ],
)
def test_wrong_arguments_are_errors(arguments: dict[str, float], words: str) -> None:
    with pytest.raises(DropoutError, match=words):
        EDLAE(**arguments)  # type: ignore[arg-type]
