"""Rendered pictures of an episode: small ones for the report, and a video with the active expert drawn on."""

import base64
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
from colours import colour
from PIL import Image, ImageColor, ImageDraw, ImageFont
from report.body import simulator

VIDEO_BYTES = 1_500_000  # about the size of episode.mp4, so that it can be sent by mail


def can_render(env_id: str) -> bool:
    """Tried in a process of its own, because a missing GL breaks the import of mujoco for good."""
    os.environ.setdefault("MUJOCO_GL", "egl")  # no screen needed
    attempt = "import sys, gymnasium; e = gymnasium.make(sys.argv[1], render_mode='rgb_array'); e.reset(); e.render()"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", attempt, env_id], capture_output=True, text=True)
    if done.returncode:
        os.environ.pop("MUJOCO_GL")
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"no video: cannot render {env_id} here ({reason}); try MUJOCO_GL=osmesa", file=sys.stderr)
    return done.returncode == 0


def camera(env: gym.Env) -> dict[str, str]:
    """What tells the renderer to follow the robot, where the model has a camera that does."""
    mujoco = simulator(env)
    names = [mujoco[0].camera(i).name for i in range(mujoco[0].ncam)] if mujoco else []
    return {"camera_name": "track"} if "track" in names else {}


def widen_floor(env: gym.Env) -> None:
    """A floor has no end for the simulator, but its picture has: a cheetah runs off it within seconds."""
    mujoco = simulator(env)
    if mujoco is None:
        return
    model = mujoco[0]
    planes = model.geom_type == 0  # mjGEOM_PLANE
    materials = np.unique(model.geom_matid[planes])
    model.geom_size[planes, :2] *= 50
    model.mat_texrepeat[materials[materials >= 0]] *= 50


def labelled(frame: np.ndarray, expert: int, step: int) -> np.ndarray:
    """A frame with a band that says which expert acts."""
    height, width = frame.shape[0] // 16 * 16, frame.shape[1] // 16 * 16  # what video codecs take
    picture = Image.fromarray(frame[:height, :width])
    draw, band = ImageDraw.Draw(picture), height // 12
    paint = ImageColor.getrgb(colour(expert + 1))
    draw.rectangle((0, 0, width, band), fill=paint)
    ink = "black" if np.dot(paint, (0.3, 0.59, 0.11)) > 128 else "white"
    font = ImageFont.load_default(size=band * 0.6)
    draw.text((band // 3, band // 5), f"Expert {expert + 1}   step {step}", fill=ink, font=font)
    return np.array(picture)


def video(frames: dict[int, np.ndarray], experts: np.ndarray, frames_per_second: float) -> bytes:
    """An mp4 of the rendered steps."""
    pictures = [labelled(frame, int(experts[step]), step) for step, frame in frames.items()]
    with tempfile.TemporaryDirectory() as folder:
        path, size = Path(folder) / "episode.mp4", pictures[0].shape[1::-1]
        bits = round(8 * VIDEO_BYTES * frames_per_second / len(pictures))  # per second
        writer = imageio_ffmpeg.write_frames(str(path), size, fps=frames_per_second, bitrate=min(bits, 2_000_000))
        writer.send(None)
        for picture in pictures:
            writer.send(picture)
        writer.close()
        return path.read_bytes()


def embedded_frames(frames: dict[int, np.ndarray]) -> list[dict[str, Any]]:
    """Small JPEGs that fit into the page."""
    embedded = []
    for step, frame in frames.items():
        picture, buffer = Image.fromarray(frame), io.BytesIO()
        picture.thumbnail((200, 200))
        picture.save(buffer, format="JPEG", quality=45, optimize=True)
        embedded.append({"step": step, "jpeg": base64.b64encode(buffer.getvalue()).decode()})
    return embedded
