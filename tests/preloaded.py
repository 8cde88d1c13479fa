"""Imported once by the process that trainers are forked from: all that they import, and Adam's first step does."""

import gymnasium.envs.mujoco  # noqa: F401
import imageio.v3  # noqa: F401
import mujoco  # noqa: F401
import pytest  # noqa: F401
import safetensors.torch  # noqa: F401
import torch
import torch.utils.tensorboard  # noqa: F401
import tyro  # noqa: F401
from tensorboard.backend.event_processing import event_accumulator  # noqa: F401

weight = torch.zeros(1)
weight.grad = torch.ones(1)
adam = torch.optim.Adam([weight])
adam.step()
adam.zero_grad()
