"""What a push does: the simulator's state is changed a little, and pushed and unpushed run on under the same policy.

Every position and velocity of the robot is pushed in turn, by 1% to 100% of its own spread, at random moments of
recorded episodes. A push lands between an observation and its action: both runs take that action, and from the next
observation on the policy reacts. Two measures, both in spreads (root mean square over the observations): the difference
to the unpushed run at the same time and, where behaviour is periodic, the distance to the nearest point of its cycle,
since a robot that is back in its gait half a step late has recovered.
"""

from typing import Any, NamedTuple, Optional

import gymnasium as gym
import numpy as np
from report.body import robot_roots, simulator
from saved_actor import Policy

SIZES = (0.01, 0.1, 0.3, 1.0)  # of the spread
MOST_STEPS = 50_000  # of the simulator, so that all pushes take well under a minute
MOST_MOMENTS, LEAST_MOMENTS = 12, 3
CYCLES, SHORTEST, LONGEST = 3, 60, 240  # how long two runs are followed: cycles, but no fewer and no more steps
FORGOTTEN = 0.1  # of the difference right after the push
SATURATED = 0.2  # spreads; two runs that differ by more are no longer near each other
ROUNDING = 1e-9  # spreads; a difference below it is rounding


class Run(NamedTuple):
    states: list[np.ndarray]
    observations: np.ndarray
    positions: np.ndarray
    velocities: np.ndarray


class Moment(NamedTuple):
    state: np.ndarray
    obs: np.ndarray
    after: np.ndarray
    """what the unpushed run then observes"""
    reward: float


class Pusher:
    """An environment of its own whose simulator is set back to recorded states."""

    def __init__(self, env: gym.Env, policy: Policy):
        import mujoco

        self.mujoco, self.env, self.policy = mujoco, env, policy
        self.model, self.data = simulator(env)
        self.kind = mujoco.mjtState.mjSTATE_INTEGRATION  # all that the next step depends on, warm start included

    def state(self) -> np.ndarray:
        state = np.empty(self.mujoco.mj_stateSize(self.model, self.kind))
        self.mujoco.mj_getState(self.model, self.data, state, self.kind)
        return state

    def record(self, seed: int, steps: int) -> Run:
        """The first steps of an episode."""
        obs, _ = self.env.reset(seed=seed)
        states, seen, positions, velocities = [], [], [], []
        for _ in range(steps):
            states.append(self.state())
            seen.append(obs)
            positions.append(self.data.qpos.copy())
            velocities.append(self.data.qvel.copy())
            obs, _, terminated, truncated, _ = self.env.step(self.act(obs))
            if terminated or truncated:
                break
        return Run(states, np.array(seen, np.float64), np.array(positions), np.array(velocities))

    def moments(self, runs: list[Run], wanted: int, horizon: int) -> list[Moment] | str:
        """Random moments from which the unpushed run goes on well, or why there are none."""
        rng, found = np.random.default_rng(0), []
        for _ in range(10 * wanted):
            run = runs[int(rng.integers(len(runs)))]
            first, last = min(len(run.states) // 10, 100), len(run.states) - horizon
            if last <= first or len(found) == wanted:
                continue
            t = int(rng.integers(first, last))
            after, reward, ended = self.run_on(run.states[t], run.observations[t], None, horizon)
            recorded = run.observations[t + 1 : t + 1 + len(after)]
            if not np.array_equal(after[: len(recorded)], recorded):
                return "the environment keeps state outside the simulator, so that no moment can be set up again"
            if not ended:
                found.append(Moment(run.states[t], run.observations[t], after, reward))
        return found or f"no recorded episode goes on for the {horizon} steps after which a push is judged"

    def act(self, obs: np.ndarray) -> np.ndarray:
        return self.policy(np.asarray(obs, np.float64))[0].astype(self.env.action_space.dtype)

    def run_on(
        self, state: np.ndarray, obs: np.ndarray, push: Optional[tuple[str, int, float]], steps: int
    ) -> tuple[np.ndarray, float, bool]:
        """Observations of the steps after the push, the reward of these steps, and whether the episode ended."""
        self.mujoco.mj_setState(self.model, self.data, state, self.kind)
        if push:
            kind, dof, change = push
            if kind == "velocity":
                self.data.qvel[dof] += change
            else:
                direction = np.zeros(self.model.nv)
                direction[dof] = change
                self.mujoco.mj_integratePos(self.model, self.data.qpos, direction, 1.0)  # knows quaternions
        seen, total = [], 0.0
        for _ in range(steps):
            obs, reward, terminated, _, _ = self.env.unwrapped.step(self.act(obs))
            seen.append(obs)
            total += float(reward)
            if terminated:
                return np.array(seen, np.float64), total, True
        return np.array(seen, np.float64), total, False


def robot_dofs(model: Any) -> list[int]:
    roots = robot_roots(model)
    return [dof for dof in range(model.nv) if int(model.body_rootid[model.dof_bodyid[dof]]) in roots]


def shown_by(observed: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The observations that show these values [steps, 1], from another origin or clipped (as velocities often are)."""
    clipped = np.abs(observed - np.clip(values, observed.min(axis=0), observed.max(axis=0))).max(axis=0) < 1e-6
    varies = observed.std(axis=0) > 1e-6
    return np.flatnonzero(((observed - values).std(axis=0) < 1e-6) | (clipped & varies))


def name_of(model: Any, dof: int, kind: str, matching: Optional[dict[str, str]]) -> str:
    """What is pushed: the name of the observation that shows it, else that of its joint."""
    if matching:
        return matching["description"]
    joint = int(model.dof_jntid[dof])
    part = dof - int(model.jnt_dofadr[joint])
    last = int(model.jnt_dofadr[joint + 1]) if joint + 1 < model.njnt else model.nv
    label = model.joint(joint).name or f"joint {joint}"
    size, turning = last - int(model.jnt_dofadr[joint]), {"position": "angle", "velocity": "angular velocity"}[kind]
    if size == 6 and part < 3:
        return f"{'xyz'[part]}-{kind} of {label}"
    if size > 1:
        return f"{turning} of {label} about {'xyz'[part % 3]}"
    return f"{turning if model.jnt_type[joint] == 3 else kind} of {label}"  # mjJNT_HINGE


def growth_per_step(rows: np.ndarray) -> Optional[float]:
    """The factor per step of the median difference of many runs [runs, steps], while it is small."""
    curve = np.median(rows, axis=0)
    outside = np.flatnonzero((curve < ROUNDING) | (curve > SATURATED))
    end = int(outside[0]) if len(outside) else len(curve)
    start = max(1, end // 4)  # the policy has to react first, and a push has to spread over the observations
    if end - start < 4:
        return None
    return float(np.exp(np.polyfit(np.arange(start, end), np.log(curve[start:end]), 1)[0]))


def pushes_of(
    env: gym.Env, policy: Policy, episodes: list[Any], names: list[dict[str, str]], gait: dict[str, Any]
) -> Optional[dict[str, Any]]:
    """Pushes at random moments of these episodes (seed, observations); None outside MuJoCo."""
    if simulator(env) is None:
        return None
    pusher, period = Pusher(env, policy), gait.get("period", 0.0)
    model, n = pusher.model, max(len(e.observations) for e in episodes)
    horizon = int(min(max(CYCLES * period, SHORTEST), LONGEST, max(10, n // 2)))
    states = np.concatenate([e.observations for e in episodes]).astype(np.float64)
    seen = states.std(axis=0) > 1e-9
    spread = states.std(axis=0)[seen]
    cycle = np.asarray(gait["observations"]["median"]).T[:, seen] if period else np.zeros((0, seen.sum()))

    def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        both = min(len(a), len(b))
        return np.sqrt((((a[:both] - b[:both])[:, seen] / spread) ** 2).mean(axis=1))

    def off_the_gait(a: np.ndarray) -> np.ndarray:
        return np.sqrt((((a[:, None, seen] - cycle) / spread) ** 2).mean(axis=2)).min(axis=1)

    runs = [pusher.record(e.seed, len(e.observations)) for e in episodes[:4]]
    turned = np.zeros((sum(len(r.positions) for r in runs), model.nv))
    positions = np.concatenate([r.positions for r in runs])
    for row, pose in zip(turned, positions, strict=True):
        pusher.mujoco.mj_differentiatePos(model, row, 1.0, positions[len(positions) // 2], pose)
    moved = {"position": turned, "velocity": np.concatenate([r.velocities for r in runs])}
    observed = np.concatenate([r.observations for r in runs])
    kinds = [(kind, dof) for kind in moved for dof in robot_dofs(model) if moved[kind][:, dof].std() > 1e-9]
    wanted = int(np.clip(MOST_STEPS // (len(SIZES) * len(kinds) * horizon), LEAST_MOMENTS, MOST_MOMENTS))
    moments = pusher.moments(runs, wanted, horizon)
    if isinstance(moments, str):
        return {"moments": 0, "reason": moments}
    usual = float(np.quantile(off_the_gait(np.concatenate([m.after for m in moments])), 0.95)) if period else None
    results, idle = [], []
    apart: dict[float, list[np.ndarray]] = {size: [] for size in SIZES}
    off: dict[float, list[np.ndarray]] = {size: [] for size in SIZES}
    for kind, dof in kinds:
        unit, entry = float(moved[kind][:, dof].std()), {"kind": kind, "sizes": []}
        same = shown_by(observed, moved[kind][:, [dof]])
        entry |= {"name": name_of(model, dof, kind, names[int(same[0])] if len(same) else None), "spread": unit}
        for size in SIZES:
            rows, away, falls, lost = [], [], 0, 0.0
            for number, moment in enumerate(moments):
                push = kind, dof, (-1) ** number * size * unit
                pushed, gained, fell = pusher.run_on(moment.state, moment.obs, push, horizon)
                rest = np.full(horizon - len(pushed), np.inf)  # a fallen robot is as far away as can be
                rows.append(np.append(difference(pushed, moment.after), rest))
                away.append(np.append(off_the_gait(pushed), rest) if period else rows[-1])
                falls += fell
                lost += moment.reward - gained
            if size == SIZES[0] and max(row[0] for row in rows) < 1e-6 * size:
                idle.append(entry["name"])  # say, a robot set down elsewhere on the same floor
                break
            curve = np.median(away, axis=0)
            limit = usual if period else FORGOTTEN * curve[0]
            kept = {} if period else {"kept": finite(curve[-1] / curve[0])}  # of the first effect
            entry["sizes"].append(
                {"size": size, "falls": falls / len(moments), "reward_lost": lost / len(moments)}
                | {"back_after": back_after(curve, limit), "largest": finite(curve.max()), "left": finite(curve[-1])}
                | kept
            )
            apart[size].append(np.array(rows))
            off[size].append(np.array(away))
        else:
            entry["growth_per_step"] = growth_per_step(apart[SIZES[0]][-1])
            entry["falls_from"] = next((s["size"] for s in entry["sizes"] if s["falls"] >= 0.5), None)
            results.append(entry)
    if not results:
        return {"moments": 0, "reason": "no push of the robot changes what it observes"}
    rate = growth_per_step(np.concatenate(apart[SIZES[0]]))
    return {
        "moments": len(moments),
        "horizon": horizon,
        "sizes": list(SIZES),
        "reward_unpushed": float(np.mean([m.reward for m in moments])),
        "growth_per_step": rate,
        "growth_per_cycle": rate**period if rate and period else None,
        "falls": [float(np.mean([e["sizes"][i]["falls"] for e in results])) for i in range(len(SIZES))],
        "worst": max(range(len(results)), key=lambda i: badness(results[i])),
        "usual_distance": usual,
        "pushes": results,
        "without_effect": idle,
        "curves": [
            {"size": size, "difference": quartiles(np.concatenate(apart[size]))}
            | ({"off_the_gait": quartiles(np.concatenate(off[size]))} if period else {})
            for size in SIZES
        ],
    }


def badness(entry: dict[str, Any]) -> tuple[float, ...]:
    """Worse is falling more often, or at a smaller size, then being farther away, the 30% push first."""
    sizes = entry["sizes"]
    return (sum(s["falls"] / s["size"] for s in sizes), *(s["largest"] or np.inf for s in sizes[2:]))


def back_after(curve: np.ndarray, limit: float) -> Optional[int]:
    """Steps after which a curve stays within a limit: 0 if it never left, None if it is not back at the end."""
    beyond = np.flatnonzero(curve > limit)
    if len(beyond) and beyond[-1] + 1 >= len(curve):
        return None
    return int(beyond[-1]) + 1 if len(beyond) else 0


def finite(value: float) -> Optional[float]:
    return float(f"{value:.4g}") if np.isfinite(value) else None


def quartiles(rows: np.ndarray) -> list[list[Optional[float]]]:
    """The lower quartile, the median and the upper quartile of many runs at each step."""
    ranked = np.sort(rows, axis=0)[[len(rows) // 4, len(rows) // 2, 3 * len(rows) // 4]]
    return [[finite(value) for value in line] for line in ranked]


def jumps_of(episodes: list[Any], scale: np.ndarray) -> dict[str, Any]:
    """How far the action moves from one step to the next, in shares of its range: at switches and without one."""
    pairs: dict[tuple[int, int], list[float]] = {}
    staying = []
    for episode in episodes:
        moves = np.abs(np.diff(episode.actions.astype(np.float64), axis=0) / (2 * scale)).max(axis=1)
        for move, left, entered in zip(moves, episode.experts[:-1], episode.experts[1:], strict=True):
            if left == entered:
                staying.append(move)
            else:
                pairs.setdefault((int(left), int(entered)), []).append(move)
    switching = [move for moves in pairs.values() for move in moves]
    listed = [
        {"from": i + 1, "to": j + 1, "count": len(moves), "mean": np.mean(moves), "largest": max(moves)}
        for (i, j), moves in sorted(pairs.items(), key=lambda item: -len(item[1]))
    ]
    both = {"switching": switching, "staying": staying}
    told = {name: {"mean": np.mean(m), "largest": max(m), "count": len(m)} if m else None for name, m in both.items()}
    return told | {"pairs": listed}
