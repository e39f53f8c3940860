"""Inverse autoregressive flows: their log-determinant and their order, from the Jacobian itself."""

import math

import pytest
import torch

from lbdrop.recommend.model.flows import InverseAutoregressiveFlows

LATENT, CONTEXT = 5, 3


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def flows(count: int, latent: int = LATENT, hidden: int = 8) -> InverseAutoregressiveFlows:
    net = InverseAutoregressiveFlows(count, latent, hidden, CONTEXT)
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return net


def jacobian(net: InverseAutoregressiveFlows, eta: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    result = torch.autograd.functional.jacobian(lambda x: net(x[None], context[None])[0][0], eta)
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.parametrize(("count", "latent", "hidden"), [(1, 5, 8), (2, 5, 8), (4, 5, 8), (2, 1, 3), (3, 6, 2)])
def test_log_determinant_is_that_of_the_jacobian(count, latent, hidden) -> None:
    net, eta, context = flows(count, latent, hidden), torch.randn(4, latent), torch.randn(4, CONTEXT)
    _, growth = net(eta, context)
    exact = torch.stack(
        [torch.linalg.slogdet(jacobian(net, e, c)).logabsdet for e, c in zip(eta, context, strict=True)]
    )
    torch.testing.assert_close(growth, exact)


def test_flow_is_autoregressive_and_the_second_one_reversed() -> None:
    eta, context = torch.randn(LATENT), torch.randn(CONTEXT)
    net = flows(2)
    first = InverseAutoregressiveFlows(1, LATENT, 8, CONTEXT)
    first.flows[0] = net.flows[0]
    lower = jacobian(first, eta, context)
    assert torch.equal(lower, lower.tril())
    assert bool((lower.tril(-1)[1:].abs().sum(-1) > 0).all())  # every later dimension does depend on earlier ones
    second = jacobian(net, eta, context) @ torch.linalg.inv(lower)  # by the chain rule
    torch.testing.assert_close(second, second.triu(), atol=1e-9, rtol=0)
    assert float(second.triu(1).abs().sum()) > 0.1


def test_every_dimension_sees_all_before_it() -> None:
    net = flows(1, hidden=40)
    lower = jacobian(net, torch.randn(LATENT), torch.randn(CONTEXT))
    assert bool((lower[torch.tril_indices(LATENT, LATENT, -1).unbind()] != 0).all())


def test_update_is_a_gated_mean() -> None:
    net, eta, context = flows(1), torch.randn(4, LATENT), torch.randn(4, CONTEXT)
    flow = net.flows[0]
    h = torch.nn.functional.elu(flow.first(eta) + context @ flow.context.weight.T)
    move, gate = flow.second(h).chunk(2, -1)
    g = torch.sigmoid(gate + 1)
    torch.testing.assert_close(net(eta, context)[0], g * eta + (1 - g) * move)


def test_context_changes_the_flow() -> None:
    net, eta = flows(2), torch.randn(4, LATENT)
    assert not torch.allclose(net(eta, torch.zeros(4, CONTEXT))[0], net(eta, torch.ones(4, CONTEXT))[0])


def test_density_of_flowed_samples_integrates_to_one() -> None:
    # In one dimension with a fixed context: p(η') = q(η) / |dη'/dη| on a grid of η.
    net = flows(3, latent=1)
    eta = torch.linspace(-9, 9, 20001)[:, None]
    moved, growth = net(eta, torch.ones(1, CONTEXT).expand(len(eta), -1))
    log_density = torch.distributions.Normal(0.0, 1.0).log_prob(eta[:, 0]) - growth
    total = torch.trapezoid(log_density.exp(), moved[:, 0])
    assert math.isclose(float(total.detach()), 1.0, rel_tol=1e-6)
