"""The paper's weights figure: one panel for each expert, its row of the router first, then its commands."""

import contextlib
import io
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser


def figure_label(name: dict[str, str]) -> str:
    label = name["text"].replace("$", r"\$")
    if not name["latex"].startswith(r"\text{"):
        with contextlib.suppress(ValueError, RuntimeError):  # LaTeX beyond matplotlib's subset keeps its plain text
            MathTextParser("path").parse(f"${name['latex']}$")
            label = f"${name['latex']}$"
    return label


def weights_figure(report: dict[str, Any]) -> dict[str, bytes]:
    """weights.svg and weights.png: effect sizes, or with rank "weight" the weights themselves."""
    matplotlib.rcParams["svg.hashsalt"] = "smose"  # the same policy gives the same file
    names, share = report["names"], report["usage"]["share"]
    by_weight = report["rank"] == "weight"
    source = report["policy"] if by_weight else report["effects"]
    router, mean = (
        np.array(source[key]) for key in (("router_weight", "mean_weight") if by_weight else ("router", "mean"))
    )
    m, n_a, n_s = mean.shape
    tables = np.concatenate([router[:, None], mean], axis=1)  # [M, 1 + n_a, n_s]
    limit = max(float(np.quantile(np.abs(tables), 0.99)), 1e-9)
    obs, actions = ([figure_label(name) for name in names[kind]] for kind in ("obs", "action"))
    rows = -(-m // max(1, 66 // (n_a + 2)))
    columns = -(-m // rows)
    panel = np.array([0.2 * (n_a + 1), 0.19 * n_s])  # all sizes in inches
    step = np.array([max(panel[0] + 0.14, 0.62), panel[1] + 0.9])
    left = 0.15 + 0.062 * max(len(name["text"]) for name in names["obs"])
    size = np.array([left + columns * step[0] + 0.75, rows * step[1] + 0.2])
    figure = Figure(figsize=tuple(size))

    def place(column: int, row: int, width: float) -> Any:
        corner = np.array([left + column * step[0], size[1] - 0.75 - row * step[1] - panel[1]])
        return figure.add_axes((*(corner / size), width / size[0], panel[1] / size[1]))

    for k in range(m):
        axis = place(k % columns, k // columns, panel[0])
        image = axis.imshow(tables[k].T, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="none")
        axis.set_title(f"Expert {k + 1}\n" + (f"{100 * share[k]:.0f} %" if share[k] else "unused"), fontsize=7)
        axis.set_xticks(range(n_a + 1), [f"$S_{{{k + 1}}}$", *actions], fontsize=7, rotation=90 if n_a > 3 else 0)
        axis.set_yticks(*((range(n_s), obs) if k % columns == 0 else ([], [])), fontsize=7)
        axis.tick_params(length=0)
        axis.axvline(0.5, color="white", linewidth=2)
        axis.spines[:].set_color("#cccccc")
    figure.colorbar(image, cax=place(columns, 0, 0.1), extend="both").ax.tick_params(labelsize=7)
    what = "weights of router and experts" if by_weight else "effect sizes (weight times spread) of router and experts"
    figure.text(0.1 / size[0], 1 - 0.2 / size[1], f"{report['env_id']}: {what}", fontsize=8)
    files = {}
    for kind, extra in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 160})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, **extra)
        files[f"weights.{kind}"] = buffer.getvalue()
    return files
