"""One colour per expert, the same in report, video and trees: Okabe and Ito's, which colour-blind people tell apart."""

COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#6F6F6F"]
SHADES = [(0, 0), (0, 0.42), (255, 0.52), (0, 0.68)]  # further rounds of eight are darker, lighter, darkest


def colour(m: int) -> str:
    """#rrggbb for expert m, which is 1 for the first."""
    towards, share = SHADES[(m - 1) // len(COLOURS) % len(SHADES)]
    base = COLOURS[(m - 1) % len(COLOURS)]
    channels = [int(base[k : k + 2], 16) for k in (1, 3, 5)]
    return "#" + "".join(f"{round(c + (towards - c) * share):02X}" for c in channels)
