"""One cycle of a periodic behaviour in place of a thousand steps: its period, its phase, who acts when in it.

The period is a peak of the observations' autocorrelation. The phase of a step is that of the observation that swings
most at this period, by a Fourier coefficient over the two periods around the step: smooth even at six steps per cycle.
"""

from typing import Any

import numpy as np

PHASES = 48  # points on the axis of one cycle
POSES = 8  # pictures of the body in one cycle
WARM_UP = 0.15  # of an episode, before its gait is steady
LEAST_STRENGTH = 0.5  # autocorrelation at the period, from which on behaviour is called periodic
LEAST_DIP = 0.25  # how far the autocorrelation must fall on the way there: a slow drift does not
LEAST_CYCLES = 5
LEAST_SWING = 0.1  # spreads; a robot that moves less has come to rest, and how it trembles is no gait
FINE = 16  # points per step on which the autocorrelation is interpolated


def autocorrelation(signals: list[np.ndarray], longest: int) -> np.ndarray:
    """Of standardised signals [T, n], at lags 0, 1/16, 2/16, ... up to `longest` steps, averaged over all of them."""
    sums, weights = np.zeros(longest + 1), np.zeros(longest + 1)
    for x in signals:
        size = 1 << (2 * len(x)).bit_length()
        spectrum = np.abs(np.fft.rfft(x, size, axis=0)) ** 2
        lags = min(longest, len(x) - 1)
        sums[: lags + 1] += np.fft.irfft(spectrum.sum(axis=1))[: lags + 1]
        weights[: lags + 1] += (len(x) - np.arange(lags + 1)) * x.shape[1]
    r = sums / np.maximum(weights, 1)
    if r[0] <= 0:
        return np.zeros(FINE * longest + 1)
    # band-limited interpolation: at six steps per cycle the peak lies between the whole lags
    mirrored = np.concatenate([r, r[-2:0:-1]])
    padded = np.zeros(FINE * len(mirrored) // 2 + 1, complex)
    half = np.fft.rfft(mirrored)
    padded[: len(half)] = half
    return np.fft.irfft(padded)[: FINE * longest + 1] * FINE / r[0]


def period_of(signals: list[np.ndarray]) -> tuple[float, float]:
    """The period in steps and the autocorrelation there; (0, 0) where nothing repeats."""
    longest = max(map(len, signals), default=0) // LEAST_CYCLES
    if longest < 3:
        return 0.0, 0.0
    r = autocorrelation(signals, longest)
    peaks = np.flatnonzero((r[1:-1] > r[:-2]) & (r[1:-1] >= r[2:])) + 1
    lows = np.minimum.accumulate(r)
    peaks = [int(p) for p in peaks if p >= 2 * FINE and r[p] >= LEAST_STRENGTH and r[p] - lows[p] >= LEAST_DIP]
    if not peaks:
        return 0.0, 0.0
    best = max(r[p] for p in peaks)
    first = next(p for p in peaks if r[p] >= best - 0.1)  # its multiples are peaks as well
    return first / FINE, float(r[first])


def swing(x: np.ndarray, period: float) -> np.ndarray:
    """The complex Fourier coefficient of each column at the period, over the two periods around each step."""
    reach = int(np.ceil(period))
    k = np.arange(-reach, reach + 1)
    window = (1 + np.cos(np.pi * k / (reach + 1))) * np.exp(2j * np.pi * k / period)  # convolution turns k around
    centred = x - x.mean(axis=0)
    return np.stack([np.convolve(column, window, "same") for column in centred.T], axis=1)


def gait_of(episodes: list[Any], n_experts: int) -> dict[str, Any]:
    """The cycle of these episodes (observations, actions, experts), or {"periodic": False}."""
    states = np.concatenate([e.observations for e in episodes]).astype(np.float64)
    spread = states.std(axis=0)
    varying = np.flatnonzero(spread > 1e-9)
    steady = [slice(int(WARM_UP * len(e.observations)), None) for e in episodes]
    signals = [(e.observations[part][:, varying] - states.mean(axis=0)[varying]) / spread[varying]
               for e, part in zip(episodes, steady, strict=True)]  # fmt: skip
    signals = [x - x.mean(axis=0) for x in signals if len(x) > 3]
    moving = [x for x in signals if len(varying) and np.sqrt((x**2).mean()) >= LEAST_SWING]
    if signals and not moving:
        return {"periodic": False, "at_rest": True}
    signals = moving
    period, strength = period_of(signals)
    if not period:
        return {"periodic": False}
    power = sum((np.abs(swing(x, period)) ** 2).sum(axis=0) for x in signals)
    reference = int(varying[power.argmax()])
    cycles: dict[str, list[np.ndarray]] = {"observations": [], "actions": [], "experts": []}
    lengths, drawn, grid = [], None, np.arange(PHASES) / PHASES
    for number, (episode, part) in enumerate(zip(episodes, steady, strict=True)):
        x = episode.observations[part].astype(np.float64)
        if len(x) < 3 * period:
            continue
        phase = np.unwrap(np.angle(swing(x[:, [reference]], period)[:, 0])) / (2 * np.pi)
        phase = np.maximum.accumulate(phase)  # a stumble must not run time backwards
        edge = int(np.ceil(period))  # the window sticks out of the episode there
        whole = range(int(np.ceil(phase[edge])), int(np.floor(phase[-1 - edge])))
        for cycle in whole:
            times = np.interp(cycle + np.append(grid, 1.0), phase, np.arange(len(x)))
            length = times[-1] - times[0]
            if abs(length - period) > 0.3 * period:
                continue
            lengths.append(length)
            held = part.start + np.floor(times[:-1]).astype(int)  # an action holds until the next step
            at = [np.interp(times[:-1], np.arange(len(x)), column) for column in x.T]
            cycles["observations"].append(np.stack(at, axis=1))
            cycles["actions"].append(episode.actions[held])
            cycles["experts"].append(episode.experts[held])
        if number == 0 and whole:  # only the first episodes are drawn
            drawn = phase, np.flatnonzero((phase >= whole[0]) & (phase <= whole[-1] + 1)), part.start
    if len(lengths) < LEAST_CYCLES:
        return {"periodic": False}

    def curve(values: list[np.ndarray]) -> dict[str, Any]:
        stacked = np.stack(values)  # [cycles, phases, n]
        low, middle, high = np.quantile(stacked, [0.1, 0.5, 0.9], axis=0).astype(np.float32)  # digits enough
        return {"median": middle.T, "low": low.T, "high": high.T}

    experts, shapes = np.stack(cycles["experts"]), np.stack(cycles["observations"])[..., varying] / spread[varying]
    leading = [np.bincount(experts[:, k * PHASES // POSES]).argmax() for k in range(POSES)]
    others = np.roll(shapes, len(shapes) // 2, axis=0)  # each cycle against one far from it
    switches = (np.diff(experts, axis=1, append=experts[:, :1]) != 0).sum(axis=1)
    return {
        "periodic": True,
        "period": period,
        "strength": strength,
        "cycles": len(lengths),
        "cycle_length_spread": float(np.std(lengths)),
        "reference": reference,
        "variation": float(np.median(np.sqrt(((shapes - others) ** 2).mean(axis=2)))),
        "experts": np.stack([(experts == m).mean(axis=0) for m in range(n_experts)]),
        "switches_per_cycle": float(switches.mean()),
        "actions": curve(cycles["actions"]),
        "observations": curve(cycles["observations"]),
        "poses": poses_at(*drawn, episodes[0].experts, leading) if drawn else [],
    }


def poses_at(phase: np.ndarray, inside: np.ndarray, start: int, experts: np.ndarray, leading: list[int]) -> list[dict]:
    """For each picture of the cycle a step of the first episode at that phase in which the usual expert acts."""
    poses = []
    for k, expert in enumerate(leading):
        off = np.abs((phase[inside] - k / POSES + 0.5) % 1 - 0.5)
        near = inside[off <= off.min() + 0.02]  # of equally good ones the one nearest to mid-episode
        usual = near[experts[start + near] == expert]
        near = usual if len(usual) else near
        step = int(near[np.abs(near - len(phase) / 2).argmin()])
        poses.append({"phase": k / POSES, "episode": 0, "step": start + step})
    return poses
