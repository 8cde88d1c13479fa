"""Pushes, against linear systems in MuJoCo whose answers are known by hand."""

from types import SimpleNamespace

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from report.pushes import back_after, jumps_of, name_of, pushes_of, shown_by

DT = 0.05
XML = f"""<mujoco><option timestep="{DT}" gravity="0 0 0" integrator="Euler"/><worldbody><body>
  <joint name="rail" type="slide" axis="1 0 0"/><geom type="sphere" size="0.1" mass="1"/></body></worldbody>
  <actuator><motor joint="rail"/></actuator></mujoco>"""
NAMES = [{"description": "place of the mass"}, {"description": "speed of the mass"}]


class Mass(gym.Env):
    """One kilogram on a rail, pushed by the action; |x| beyond `end` ends the episode."""

    def __init__(self, end: float = np.inf, hidden: bool = False):
        self.model = mujoco.MjModel.from_xml_string(XML)
        self.data = mujoco.MjData(self.model)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.end, self.hidden, self.steps = end, hidden, 0

    def seen(self) -> np.ndarray:
        return np.concatenate([self.data.qpos, self.data.qvel])

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = self.np_random.normal(size=(2, 1))
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        self.data.ctrl[:] = action + (0.01 * self.steps if self.hidden else 0)
        mujoco.mj_step(self.model, self.data)
        return self.seen(), 1.0, bool(abs(self.data.qpos[0]) > self.end), False, {}


def feedback(a: float, b: float):
    return lambda obs: (np.array([a * obs[0] + b * obs[1]]), 0)


def played(env: Mass, policy, steps: int, seeds=range(3)) -> list[SimpleNamespace]:
    episodes = []
    for seed in seeds:
        obs, seen = env.reset(seed=seed)[0], []
        for _ in range(steps):
            seen.append(obs)
            obs = env.step(policy(obs)[0])[0]
        episodes.append(SimpleNamespace(seed=seed, observations=np.array(seen)))
    return episodes


@pytest.mark.parametrize("a, b", [(-1.0, -8.0), (0.3, -8.0), (2.0, -10.0), (-0.2, -4.0)])
def test_growth_per_step_is_the_largest_eigenvalue(a, b):
    # semi-implicit Euler: v' = v + dt (a x + b v), x' = x + dt v'
    closed = np.array([[1 + DT * DT * a, DT * (1 + DT * b)], [DT * a, 1 + DT * b]])
    by_hand = np.abs(np.linalg.eigvals(closed)).max()
    env, policy = Mass(), feedback(a, b)
    pushes = pushes_of(env, policy, played(env, policy, 150), NAMES, {"periodic": False})
    assert pushes["growth_per_step"] == pytest.approx(by_hand, abs=0.002)
    assert [p["name"] for p in pushes["pushes"]] == ["place of the mass", "speed of the mass"]
    for push in pushes["pushes"]:
        assert push["growth_per_step"] == pytest.approx(by_hand, abs=0.002)


def test_a_difference_is_that_of_the_linear_system():
    a, b, n = -1.0, -8.0, 150
    closed = np.array([[1 + DT * DT * a, DT * (1 + DT * b)], [DT * a, 1 + DT * b]])
    opened = np.array([[1, DT], [0, 1]])  # both runs take the same action while the push lands
    env, policy = Mass(), feedback(a, b)
    episodes = played(env, policy, n)
    pushes = pushes_of(env, policy, episodes, NAMES, {"periodic": False})
    spread = np.concatenate([e.observations for e in episodes]).std(axis=0)
    expected = []
    for push in np.diag(spread) * 0.3:
        after = [opened @ push]
        while len(after) < pushes["horizon"]:
            after.append(closed @ after[-1])
        expected.append(np.sqrt(((np.array(after) / spread) ** 2).mean(axis=1)))
    quartiles = np.array(pushes["curves"][2]["difference"])  # of as many pushes of the place as of the speed
    assert quartiles[0] == pytest.approx(np.min(expected, axis=0), rel=1e-3)
    assert quartiles[2] == pytest.approx(np.max(expected, axis=0), rel=1e-3)
    left = [push["sizes"][2]["kept"] for push in pushes["pushes"]]  # of the first effect, at the end
    assert left == pytest.approx([curve[-1] / curve[0] for curve in expected], rel=1e-3)


def test_a_swinging_mass_leaves_its_bounds_when_pushed_hard():
    # without friction the amplitude stays: 1% of the spread cannot raise it by 5%, 100% raises it by 22% or lowers it
    env, policy = Mass(), feedback(-1.0, 0.0)
    episodes = played(env, policy, 300, seeds=[0])
    amplitude = np.abs(episodes[0].observations[:, 0]).max()
    pushes = pushes_of(Mass(end=1.05 * amplitude), policy, episodes, NAMES, {"periodic": False})
    assert pushes["falls"][0] == 0 and pushes["falls"][3] >= 0.4
    hardest = [p["sizes"][3]["falls"] for p in pushes["pushes"]]
    assert max(hardest) == hardest[pushes["worst"]]


def test_state_outside_the_simulator_is_noticed():
    env, policy = Mass(hidden=True), feedback(-1.0, -8.0)
    pushes = pushes_of(env, policy, played(env, policy, 150), NAMES, {"periodic": False})
    assert pushes["moments"] == 0 and "outside the simulator" in pushes["reason"]


def test_an_observation_shows_a_coordinate_from_another_origin_or_clipped_but_not_as_a_constant():
    values = np.random.default_rng(0).normal(size=(100, 1))
    columns = [np.zeros_like(values), values**2, values + 3, np.clip(values, -0.5, 0.5), np.maximum(values, 0) / 2]
    assert shown_by(np.hstack(columns), values).tolist() == [2, 3]


def test_what_no_observation_shows_is_named_by_its_joint():
    model = gym.make("Ant-v4").unwrapped.model
    names = [name_of(model, dof, kind, None) for kind in ("position", "velocity") for dof in (1, 4, 6)]
    assert names == [
        "y-position of root",
        "angle of root about y",
        "angle of hip_1",
        "y-velocity of root",
        "angular velocity of root about y",
        "angular velocity of hip_1",
    ]
    rail = Mass().model
    assert [name_of(rail, 0, kind, None) for kind in ("position", "velocity")] == [
        "position of rail",
        "velocity of rail",
    ]


def test_other_environments_are_left_alone():
    assert pushes_of(gym.make("Pendulum-v1"), None, [], [], {}) is None


def test_back_after():
    assert back_after(np.array([1.0, 2.0, 1.0]), 3.0) == 0
    assert back_after(np.array([5.0, 4.0, 1.0, 2.0]), 3.0) == 2
    assert back_after(np.array([1.0, 4.0, 1.0, 3.5]), 3.0) is None


def test_jumps_at_switches():
    actions = np.array([[0.0, 0.0], [0.2, 0.0], [1.0, -1.0], [-1.0, -1.0]])
    jumps = jumps_of([SimpleNamespace(actions=actions, experts=np.array([0, 0, 1, 0]))], np.array([1.0, 2.0]))
    assert jumps["staying"] == {"mean": pytest.approx(0.1), "largest": pytest.approx(0.1), "count": 1}
    assert jumps["switching"] == {"mean": pytest.approx(0.7), "largest": pytest.approx(1.0), "count": 2}
    pairs = {(p["from"], p["to"]): p["mean"] for p in jumps["pairs"]}
    assert pairs == {(1, 2): pytest.approx(0.4), (2, 1): pytest.approx(1.0)}
