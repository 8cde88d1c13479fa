"""The drawn body against the simulator."""

import gymnasium as gym
import numpy as np
import pytest
from report.body import body_of, simulator, unpacked

gym.logger.min_level = gym.logger.ERROR


def recorded(env_id: str, steps: int = 40):
    env = gym.make(env_id)
    env.reset(seed=0)
    env.action_space.seed(0)
    model, data = simulator(env)
    poses = []
    for _ in range(steps):
        poses.append(data.qpos.copy())
        env.step(env.action_space.sample())
    return model, np.array(poses)


def test_hoppers_capsules_end_in_its_joints():
    import mujoco

    model, poses = recorded("Hopper-v4")
    body = body_of(model, [poses])
    assert (body["view"], body["ground"], body["every"]) == ("side", 0.0, 1)
    assert [shape["points"] for shape in body["shapes"]] == [2, 2, 2, 2]  # torso, thigh, leg, foot
    points, data = unpacked(body, 0), mujoco.MjData(model)
    for t in (0, 17, 39):
        data.qpos[:] = poses[t]
        mujoco.mj_kinematics(model, data)
        for joint, shape in ("thigh_joint", 1), ("leg_joint", 2):  # hip and knee are the upper ends of thigh and leg
            anchor = data.joint(joint).xanchor[[0, 2]]
            ends = points[t, 2 * shape : 2 * shape + 2]
            assert np.abs(ends - anchor).max(axis=1).min() < 2 * body["unit"] + 1e-6


@pytest.mark.parametrize(
    "env_id, view, things",
    [
        ("HalfCheetah-v4", "side", 0),
        ("InvertedPendulum-v4", "side", 0),
        ("Swimmer-v4", "above", 0),
        ("Reacher-v4", "above", 1),  # the target is no part of the robot
        ("Ant-v4", "oblique", 0),
        ("Pusher-v5", "oblique", 2),
    ],
)
def test_every_robot_has_its_view(env_id, view, things):
    model, poses = recorded(env_id)
    body = body_of(model, [poses, poses[:7]])
    assert body["view"] == view
    assert sum(not shape["robot"] for shape in body["shapes"]) == things
    points = unpacked(body, 1)
    assert points.shape == (-(-7 // body["every"]), sum(s["points"] for s in body["shapes"]), len(body["axes"]))
    assert np.isfinite(points).all()


def test_long_recordings_of_large_robots_stay_small():
    model, poses = recorded("Ant-v4", 30)
    body = body_of(model, [np.tile(poses, (100, 1))] * 2)
    assert body["every"] > 1
    assert sum(len(e["offsets"]) + len(e["trunk"]) for e in body["episodes"]) < 400_000


def test_boxes_and_cylinders_keep_their_size():
    import mujoco

    xml = """<mujoco><worldbody><body><joint type="slide" axis="1 0 0"/><geom type="box" size=".1 .2 .3"/>
      <geom type="cylinder" size=".05 .4" pos="1 0 0"/><geom type="ellipsoid" size=".1 .2 .3" pos="2 0 0"/></body>
      </worldbody></mujoco>"""
    model = mujoco.MjModel.from_xml_string(xml)
    body = body_of(model, [np.array([[0.0], [0.5]])])
    first, sizes = unpacked(body, 0)[0], [shape["points"] for shape in body["shapes"]]
    box, cylinder, ellipsoid = np.split(first, np.cumsum(sizes)[:-1])
    assert body["view"] == "side"  # it only slides along x
    assert np.ptp(box, axis=0) == pytest.approx([0.2, 0.6], abs=1e-3)
    assert np.ptp(cylinder, axis=0) == pytest.approx([0.1, 0.8], abs=1e-3)
    assert np.ptp(ellipsoid, axis=0) == pytest.approx([0.2, 0.6], abs=1e-3)


def test_other_environments_have_no_body():
    assert simulator(gym.make("Pendulum-v1")) is None
