"""The robot's body as drawings: MuJoCo's own geometry, projected, and packed so that a page can play it.

A shape is a few points with a radius around them: one point is a ball, two are a capsule, more are the outline of a
box, a cylinder or whatever else. So one rule draws every robot.
"""

import base64
from typing import Any, Optional

import gymnasium as gym
import numpy as np

MOST_NUMBERS = 130_000  # 16 bits each, so that a page carries about 350 KB of them
AZIMUTH, ELEVATION = np.radians(28), np.radians(24)  # of the oblique view
STILL = 1e-3  # metres; a robot that strays less from a plane moves in it


def simulator(env: gym.Env) -> Optional[tuple[Any, Any]]:
    """MuJoCo's model and data, or None for environments of another kind."""
    model, data = (getattr(env.unwrapped, name, None) for name in ("model", "data"))
    if type(model).__module__.startswith("mujoco"):
        return model, data
    return None


def robot_roots(model: Any) -> set[int]:
    """The kinematic trees that have an actuator; a target or a puck is a thing, not the robot."""
    import mujoco

    roots = set()
    for kind, target in zip(model.actuator_trntype, model.actuator_trnid[:, 0], strict=True):
        if kind in (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT):
            roots.add(int(model.body_rootid[model.jnt_bodyid[target]]))
    return roots or {int(root) for root in model.body_rootid if root}


def outline(model: Any, geom: int) -> tuple[np.ndarray, float]:
    """The points of one geom in its own frame, and the radius around them."""
    import mujoco

    kind, (a, b, c) = model.geom_type[geom], model.geom_size[geom]
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
    turn = np.arange(12) * np.pi / 6
    ring = np.stack([np.cos(turn), np.sin(turn), np.zeros(12)], axis=1)
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        return np.zeros((1, 3)), float(a)
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        return np.array([[0, 0, -b], [0, 0, b]]), float(a)
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        return np.concatenate([ring * a + [0, 0, z] for z in (-b, b)]), 0.0
    if kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
        return np.concatenate([np.roll(ring, k, axis=1) for k in range(3)]) * (a, b, c), 0.0
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        return corners * (a, b, c), 0.0
    centre, half = np.split(model.geom_aabb[geom], 2)  # meshes and the like
    return centre + corners * half, 0.0


def view_of(ranges: np.ndarray) -> tuple[str, np.ndarray]:
    """Rows: right, up and, where the view is oblique, away. `ranges` says how far the robot moves along x, y and z."""
    flat = ranges < STILL
    if flat[1] or flat[0]:
        return "side", np.eye(3)[[0, 2] if flat[1] else [1, 2]]
    if flat[2]:
        return "above", np.eye(3)[[0, 1]]
    (sin_a, cos_a), (sin_e, cos_e) = ((np.sin(angle), np.cos(angle)) for angle in (AZIMUTH, ELEVATION))
    right, away = np.array([cos_a, -sin_a, 0]), np.array([sin_a * cos_e, cos_a * cos_e, -sin_e])
    return "oblique", np.stack([right, np.cross(right, away), away])


def body_of(model: Any, poses: list[np.ndarray]) -> Optional[dict[str, Any]]:
    """Everything a page needs to draw the robot at each recorded pose (qpos [T, nq] of each episode)."""
    import mujoco

    data, roots = mujoco.MjData(model), robot_roots(model)
    seen = (model.geom_group <= 2) & (model.geom_rgba[:, 3] > 0)
    plane = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    root = model.body_rootid[model.geom_bodyid]
    still = model.body_weldid[model.geom_bodyid] == 0
    moving = [int(g) for g in np.flatnonzero(seen & ~plane & ~still)]
    moving.sort(key=lambda g: root[g] not in roots)  # the robot first, then things
    if not moving:
        return None
    fixed = [int(g) for g in np.flatnonzero(seen & ~plane & still)]
    outlines = {g: outline(model, g) for g in moving + fixed}
    trunk = int(model.geom_bodyid[moving[0]])

    def points_at(pose: np.ndarray, geoms: list[int]) -> list[np.ndarray]:
        data.qpos[:] = pose
        mujoco.mj_kinematics(model, data)
        return [data.geom_xpos[g] + outlines[g][0] @ data.geom_xmat[g].reshape(3, 3).T for g in geoms]

    total = sum(map(len, poses)) * sum(len(outlines[g][0]) for g in moving)
    every = -(-3 * total // MOST_NUMBERS) if total else 1
    frames, trunks = [], []
    for episode in poses:
        points, places = [], []
        for pose in episode[::every]:
            points.append(np.concatenate(points_at(pose, moving)))
            places.append(data.xpos[trunk].copy())
        frames.append(np.array(points))
        trunks.append(np.array(places))
    own = np.concatenate([outlines[g][0][:, 0] * 0 + (root[g] in roots) for g in moving]) > 0
    view, axes = view_of(np.max([np.ptp(f[:, own], axis=0).max(axis=0) for f in frames], axis=0))
    offsets = [(f - t[:, None]) @ axes.T for f, t in zip(frames, trunks, strict=True)]
    unit = max(float(np.abs(o).max()) for o in offsets) / 32_000
    ground = [float(data.geom_xpos[g][2]) for g in np.flatnonzero(plane & seen)]

    def shape(geom: int) -> dict[str, Any]:
        points, radius = outlines[geom]
        names = {"body": model.body(model.geom_bodyid[geom]).name, "geom": model.geom(geom).name}
        return {**names, "points": len(points), "radius": radius, "robot": bool(root[geom] in roots)}

    scene = points_at(poses[0][0], fixed)
    return {
        "view": view,
        "axes": axes.tolist(),
        "ground": ground[0] if ground else None,
        "shapes": [shape(g) for g in moving],
        "scene": [shape(g) | {"at": (p @ axes.T).tolist()} for g, p in zip(fixed, scene, strict=True)],
        "every": every,
        "unit": unit,
        "episodes": [
            {
                "frames": len(o),
                "trunk": packed(t @ axes.T, "<f4"),
                "offsets": packed(np.rint(o / unit), "<i2"),
            }
            for o, t in zip(offsets, trunks, strict=True)
        ],
    }


def packed(numbers: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers, dtype=kind).tobytes()).decode()


def unpacked(body: dict[str, Any], episode: int) -> np.ndarray:
    """The drawn points [frames, points, 2 or 3], as the page unpacks them."""
    entry, n = body["episodes"][episode], sum(shape["points"] for shape in body["shapes"])
    trunk = np.frombuffer(base64.b64decode(entry["trunk"]), "<f4").reshape(entry["frames"], 1, -1)
    offsets = np.frombuffer(base64.b64decode(entry["offsets"]), "<i2").reshape(entry["frames"], n, -1)
    return trunk + body["unit"] * offsets
