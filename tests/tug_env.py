"""An environment of a user's own: no render_mode, asymmetric bounds, float64 observations, both kinds of ends.

It writes down all that happens to it, in tug0.jsonl, tug1.jsonl, ... of the current folder.
"""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np


class Tug(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Box(np.array([-1, 0], np.float32), np.array([3, 0.5], np.float32))

    def __init__(self):
        self.log = open(f"tug{len(list(Path.cwd().glob('tug*.jsonl')))}.jsonl", "w")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.state = 0, self.np_random.normal(size=3)
        print(json.dumps({"seed": seed}), file=self.log, flush=True)
        return self.state.copy(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        before, self.steps = self.state.copy(), self.steps + 1
        self.state += 0.1 * self.np_random.normal(size=3) + 0.1 * np.array([action[0] - 1, action[1], 0])
        reward, terminated, truncated = -float(self.state[0] ** 2), bool(self.state[0] > 1.5), self.steps == 40
        row = [*before, *action.tolist(), *self.state, reward, terminated]
        print(json.dumps({"row": row, "done": terminated or truncated}), file=self.log, flush=True)
        return self.state.copy(), reward, terminated, truncated, {}


gym.register("Tug-v0", entry_point=Tug)
