"""Environments that the trainers can't use, that fail on the way, or that have state of their own."""

import gymnasium as gym
import numpy as np
from gymnasium.envs.mujoco.hopper_v4 import HopperEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

UNIT = Box(-1, 1, (2,))
AT = 150  # the step in which it happens, unless an evaluation has reset it


class Odd(gym.Env):
    def __init__(self, observation_space=UNIT, action_space=UNIT, odd=None):
        self.observation_space, self.action_space = observation_space, action_space
        self.odd, self.at, self.count = odd, AT, 0
        if odd == "refuses":
            raise RuntimeError("this robot is not connected\n(second line\nthird line)")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None and seed >= 100_000:
            self.at = 10**9  # an evaluation
        late = self.count >= self.at
        if late and self.odd == "reset raises":
            raise OSError("the robot does not answer")
        if late and self.odd == "reset shape":
            return np.zeros(3), {}
        return np.array([np.nan if late and self.odd == "reset" else 0.5, 0.0]), {}

    def step(self, action):
        self.count += 1
        obs, reward = self.np_random.uniform(-1, 1, 2), float(action[0])
        if self.count >= self.at:
            obs[1] = {"obs": np.inf, "huge obs": 1e300}.get(self.odd, obs[1])
            reward = {"reward": np.nan, "huge reward": 1e25, "no reward": None}.get(self.odd, reward)
            if self.odd == "step raises":
                raise ZeroDivisionError("a motor\nstalled")
            if self.odd == "step shape":
                obs = np.zeros((2, 2))
            if self.odd == "old step":
                return obs, reward, False, {}
        return obs, reward, False, self.odd != "endless" and self.count % 10 == 0, {}


class CountingHopper(HopperEnv):
    """Hopper whose reward has a counter in it that MuJoCo knows nothing of: of this episode's steps, or of all."""

    counter, over_episodes = 0, False

    def reset_model(self):
        self.counter = self.counter if self.over_episodes else 0
        return super().reset_model()

    def step(self, action):
        self.counter += 1
        obs, reward, *others = super().step(action)
        return obs, reward + 0.01 * self.counter, *others


class LongCountingHopper(CountingHopper):
    over_episodes = True


def add(name, **kwargs):
    gym.register(f"{name}-v0", entry_point=Odd, kwargs=kwargs)


add("DictObs", observation_space=Dict(a=UNIT, b=UNIT))
add("TupleObs", observation_space=Tuple((UNIT, UNIT)))
add("Image", observation_space=Box(0, 255, (8, 8, 3), np.uint8))
add("DiscreteObs", observation_space=Discrete(5))
add("Unbounded", action_space=Box(-np.inf, np.inf, (2,)))
add("HalfBounded", action_space=Box(np.array([-1, -1]), np.array([1, np.inf])))
add("ActionTable", action_space=Box(-1, 1, (2, 2)))
add("MultiDiscrete", action_space=MultiDiscrete([2, 3]))
add("Refuses", odd="refuses")
for odd in ("obs", "huge obs", "reward", "huge reward", "no reward", "reset", "endless"):
    add("Odd" + odd.title().replace(" ", ""), odd=odd)
for odd in ("reset raises", "reset shape", "step raises", "step shape", "old step"):
    add("Odd" + odd.title().replace(" ", ""), odd=odd)
gym.register("CountingHopper-v0", entry_point=CountingHopper, max_episode_steps=1000)
gym.register("LongCountingHopper-v0", entry_point=LongCountingHopper, max_episode_steps=1000)
