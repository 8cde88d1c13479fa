"""Plain autograd SAC and SMoSE, written for clarity and independently of the trainers, to hold them to."""

import math

import torch
from torch.distributions import Normal
from torch.nn import functional


def affine(layer, x):
    """layer = [bias | weight], x = [batch, n]"""
    return functional.linear(x, layer[:, 1:], layer[:, 0])


def q_value(w1, w2, w3, x):
    return affine(w3, functional.relu(affine(w2, functional.relu(affine(w1, x))))).squeeze(1)


def squashed_sample(mean, raw_log_std, noise, scale, bias, log_std_min=-5.0, log_std_max=2.0):
    """CleanRL's get_action with its Gaussian noise given."""
    log_std = log_std_min + 0.5 * (log_std_max - log_std_min) * (torch.tanh(raw_log_std) + 1)
    normal = Normal(mean, log_std.exp())
    x = mean + log_std.exp() * noise
    y = torch.tanh(x)
    log_prob = normal.log_prob(x) - torch.log(scale * (1 - y.pow(2)) + 1e-6)
    return scale * y + bias, log_prob.sum(1)


def moe_heads(router, experts, s, noise, top_k, gate):
    """Mean and raw log-std of the mixture [batch, 2 n_a], logits, noisy logits; straight-through gate."""
    logits = affine(router, s)
    noisy = logits + noise
    p = torch.softmax(noisy, 1)
    chosen = noisy.topk(top_k, 1).indices
    mask = torch.zeros_like(p).scatter(1, chosen, 1.0)
    if gate == "one-hot":
        normalised = p * mask / (p * mask).sum(1, keepdim=True)
        weights = normalised.detach() + (p - p.detach()) * mask
    else:
        weights = p * mask
    outputs = torch.stack([affine(expert, s) for expert in experts], 1)
    return (weights.unsqueeze(2) * outputs).sum(1), logits, noisy


def half_squared_variation(v):
    return 0.5 * (v.std(unbiased=False) / v.mean()) ** 2


def balance_losses(logits, noisy, top_k):
    m = logits.shape[1]
    importance = torch.softmax(noisy, 1).sum(0)
    tau = noisy.topk(top_k, 1).values[:, -1:]
    load = (0.5 * (1 + torch.erf(m * (logits - tau) / math.sqrt(2)))).sum(0)
    return half_squared_variation(importance), half_squared_variation(load)
