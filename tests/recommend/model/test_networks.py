"""Encoders and decoders: sparse and dense rows agree, and each network follows its paper."""

import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array

from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.networks import Decoder, Encoder, ItemTable, Lower
from lbdrop.recommend.model.settings import Settings

ITEMS = 9
MATRIX = csr_array((torch.rand(7, ITEMS, generator=torch.Generator().manual_seed(0)) < 0.4).int().numpy())


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def batch(users=range(7)) -> Batch:
    return Rows.from_csr(MATRIX).batch(users)


@pytest.mark.parametrize("n", [1, 3])
def test_sparse_and_dense_rows_agree_in_value_and_gradient(n) -> None:
    table, rows = ItemTable(ITEMS, 4), batch()
    torch.nn.init.normal_(table.bias)
    values = torch.rand(n, len(rows.item), requires_grad=True)
    weights = torch.randn(n * 7, 4)
    found = {}
    for path in ("bag", "dense"):
        table.path = path
        out = table(values, rows)
        found[path] = (out, *torch.autograd.grad((out * weights).sum(), [values, table.weight, table.bias]))
    for one, other in zip(found["bag"], found["dense"], strict=True):
        torch.testing.assert_close(one, other)
    written_out = torch.zeros(n, 7, ITEMS)
    written_out[:, rows.user, rows.item] = values.detach()
    torch.testing.assert_close(found["bag"][0], written_out.flatten(0, 1) @ table.weight + table.bias)


@pytest.mark.parametrize("path", ["bag", "dense"])
def test_users_without_items_see_the_bias(path) -> None:
    table = ItemTable(ITEMS, 4)
    torch.nn.init.normal_(table.bias)
    table.path = path
    empty = Rows.from_csr(csr_array((2, ITEMS))).batch([0, 1])
    torch.testing.assert_close(table(torch.ones(2, 0), empty), table.bias.expand(4, 4))
    mixed = Rows.from_csr(csr_array([[0] * ITEMS, [1] + [0] * (ITEMS - 1), [0] * ITEMS])).batch([0, 1, 2])
    out = table(torch.ones(1, 1), mixed)
    torch.testing.assert_close(out, torch.stack([table.bias, table.bias + table.weight[0], table.bias]))


def test_device_decides_between_sparse_and_dense_rows() -> None:
    table, rows = ItemTable(ITEMS, 4), batch()
    table.of_dense = lambda _: pytest.fail("rows were written out on a CPU")
    table(torch.ones(1, len(rows.item)), rows)


@pytest.mark.parametrize("path", ["bag", "dense"])
@pytest.mark.parametrize(("encoder", "layers"), [("one-hidden", 1), ("one-hidden", 2), ("dense", 3), ("gated", 2)])
def test_posteriors_of_entries_equal_those_of_dense_rows(encoder, layers, path) -> None:
    net, rows = Encoder(ITEMS, Settings(encoder=encoder, layers=layers, hidden=6, latent=3)), batch()
    net.table.path = path
    values = torch.rand(2, len(rows.item))
    q = net(values, rows)
    assert q.mean.shape == q.log_variance.shape == (2, 7, 3)
    dense = net.of_dense(rows.dense(values).flatten(0, 1))
    for one, other in zip(q, dense, strict=True):
        torch.testing.assert_close(one.flatten(0, 1), other)


def test_dense_encoder_adds_all_earlier_layers() -> None:
    net = Encoder(ITEMS, Settings(encoder="dense", layers=3, hidden=6, latent=2, activation="swish"))
    x = torch.rand(5, ITEMS)
    w = [layer.linear for layer in net.layers[1:]]
    h1 = F.layer_norm(F.silu(x @ net.table.weight + net.table.bias), [6], eps=0.1)
    h2 = F.layer_norm(F.silu(w[0](h1) + h1), [6], eps=0.1)
    h3 = F.layer_norm(F.silu(w[1](h2) + h1 + h2), [6], eps=0.1)
    torch.testing.assert_close(net.of_dense(x).hidden, h3)


def test_gated_layer_multiplies_by_its_gate() -> None:
    net = Encoder(ITEMS, Settings(encoder="gated", hidden=6, latent=2))
    x = torch.rand(5, ITEMS)
    value, gate = (x @ net.table.weight + net.table.bias).split(6, -1)
    torch.testing.assert_close(net.of_dense(x).hidden, value * torch.sigmoid(gate))
    decoder = Decoder(ITEMS, Settings(decoder="gated", hidden=6, latent=2))
    eta = torch.randn(5, 2)
    value, gate = decoder.layers[0].linear(eta).split(6, -1)
    torch.testing.assert_close(decoder(eta), decoder.out(value * torch.sigmoid(gate)))


def test_linear_decoder_is_one_product() -> None:
    decoder, eta = Decoder(ITEMS, Settings(decoder="linear", latent=2)), torch.randn(5, 2)
    torch.testing.assert_close(decoder(eta), eta @ decoder.out.weight.T + decoder.out.bias)
    assert len(list(decoder.parameters())) == 2


def test_log_variance_is_clipped_to_its_range() -> None:
    net = Encoder(ITEMS, Settings(hidden=6, latent=2, log_variance_range=(-1.0, 0.5)))
    with torch.no_grad():
        net.head.linear.bias.copy_(torch.tensor([9.0, 9.0, 9.0, -9.0]))
    q = net.of_dense(torch.rand(4, ITEMS))
    assert torch.equal(q.log_variance, torch.tensor([0.5, -1.0]).expand(4, 2))
    assert bool((q.mean > 5).all())


def test_dae_uses_its_activations_as_latent_vector() -> None:
    net = Encoder(ITEMS, Settings(variational=False, encoder="direct", latent=3))
    x = torch.rand(4, ITEMS)
    torch.testing.assert_close(net.of_dense(x).mean, torch.tanh(x @ net.table.weight + net.table.bias))


def test_bfloat16_leaves_posteriors_in_float32() -> None:
    torch.set_default_dtype(torch.float32)
    net, rows = Encoder(ITEMS, Settings(hidden=6, latent=2)), batch()
    net.table.path = "dense"
    values = torch.rand(2, len(rows.item))
    with torch.autocast("cpu", torch.bfloat16):
        q = net(values, rows)
    assert q.mean.dtype == q.log_variance.dtype == torch.float32
    torch.testing.assert_close(q.mean, net(values, rows).mean, rtol=0.05, atol=0.05)


def test_lower_level_depends_on_row_and_upper_level_and_its_prior_on_the_upper_alone() -> None:
    lower = Lower(Settings(hidden=6, latent=2, levels=2))
    hidden, upper = torch.randn(3, 5, 6), torch.randn(5, 2)
    mean, log_variance = lower.posterior(hidden, upper)
    for n in range(3):
        joint = torch.cat([hidden[n], upper], -1)
        expected = lower.joint_head.linear(torch.tanh(lower.joint.linear(joint)))
        torch.testing.assert_close(torch.cat([mean[n], log_variance[n]], -1), expected)
    expected = lower.above_head.linear(torch.tanh(lower.above.linear(upper)))
    torch.testing.assert_close(torch.cat(lower.prior(upper), -1), expected)
