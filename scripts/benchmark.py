"""How fast the trainers are, beside Stable-Baselines3 and beside the matrix products that no trainer can avoid.

    python scripts/benchmark.py                                      # HalfCheetah-v4, about four quiet minutes
    python scripts/benchmark.py --env-id Ant-v4 --output benchmark.json
    python scripts/benchmark.py --peers sb3 sbx                      # SBX too (pip install sbx-rl)
    python scripts/benchmark.py --only smose sb3 --no-sweep          # a quick look
    python scripts/benchmark.py --no-sweep --no-compile              # as on a machine without a C++ compiler
    python scripts/benchmark.py --memory-env Ant-v4                  # also: peak memory once the replay buffer is full

Every competitor trains in a process of its own, as its users start it, on one thread and all on the same core, with the
same environment, batch and network sizes and one update of the critics and of the actor per step. The environment is
the clock: it counts steps, and after each round of --steps-per-round it reports and waits for its next turn, so exactly
one competitor runs at a time and noise hits all alike. Start-up and warm-up are not measured. Ratios are taken round by
round; a number in the tables is the median over the rounds, with the quartiles behind it.

The floor is the time of just the matrix products of a step (both critics at batch 256: target forward, forward, weight
and input gradients; forward and input gradients once more for the actor), in float32, at the fastest of eight memory
layouts, by MKL or oneDNN. The neural actors of SAC-L and of the peers have products of their own: their floor includes
them.
"""

from command_line import UserError, end_on_mistakes, output_file, parse_args, write_whole

# from here on Ctrl-C is quiet
# isort: split

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import operator
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Optional

import gymnasium as gym
import numpy as np
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
TRAINERS = {"smose": ("smose_sac.py",), "sac-l": ("sac_baseline.py", "--size", "L")}
TRAINERS |= {f"{name}-bf16": (*command, "--precision", "bfloat16") for name, command in TRAINERS.items()}
PEERS = {"sb3": ("stable_baselines3", "stable-baselines3"), "sbx": ("sbx", "sbx-rl")}  # module, name on PyPI
LABELS = {name: " ".join(command) for name, command in TRAINERS.items()} | {"sb3": "Stable-Baselines3 SAC"}
LABELS |= {"sbx": "SBX SAC", "floor": "matrix products alone", "floor-l": "the same with SAC-L's actor"}
NEURAL = {"sac-l", "sac-l-bf16", "sb3", "sbx"}  # whose actor is a network of the critics' size
BATCH_SIZE, HIDDEN = 256, 256
SETTLE = 40  # updates before the first round: caches fill, compilers compile
DECISIONS, DECISION_ROUNDS = 200, 5
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
ONE_THREAD |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
CLOCKED = "benchmark:Clocked-v0"

Product = tuple  # (left, right, out) tensors of shape [networks, rows, columns]


@dataclass
class Args:
    env_id: str = "HalfCheetah-v4"
    """environment to train on"""
    rounds: int = 10
    """rounds that every competitor gets, in turn"""
    steps_per_round: int = 200
    """steps of a round; even, because the actor is updated twice on every second step"""
    peers: tuple[Literal["sb3", "sbx"], ...] = ("sb3",)
    """other people's SAC: sb3 (Stable-Baselines3), sbx (its JAX sibling)"""
    only: tuple[Literal["smose", "sac-l", "smose-bf16", "sac-l-bf16", "sb3", "sbx", "floor"], ...] = ()
    """measure just these"""
    sweep: bool = True
    """also measure smose_sac.py's cost over the number of experts and the batch size"""
    experts: tuple[int, ...] = (8, 32, 128)
    """numbers of experts of that sweep; costs are relative to the first"""
    batch_sizes: tuple[int, ...] = (256, 1024)
    """batch sizes of that sweep; costs are relative to the first"""
    memory_env: Optional[str] = None
    """also measure the trainers' peak memory on this environment with a full replay buffer (minutes per trainer)"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where to train; auto: on the CPU, and then on the GPU as well if there is one"""
    compile: bool = True
    """--no-compile: the trainers as on a machine without a C++ compiler"""
    buffer_size: int = 1_000_000
    """size of everybody's replay buffer"""
    learning_starts: int = 5_000
    """random steps before learning, not measured"""
    core: Optional[int] = None
    """CPU to run on (default: the last one)"""
    output: Optional[str] = None
    """write all numbers, with every round's, to this file"""


@dataclass(frozen=True)
class Schedule:
    """What the clock in a competitor's process needs to know."""

    env_id: str
    warm_up: int
    steps_per_round: int
    rounds: int

    @property
    def end(self) -> int:
        """Steps until the last round is over and one step more has been taken: time to evaluate."""
        return self.warm_up + self.rounds * self.steps_per_round + 1


@dataclass(frozen=True)
class Competitor:
    name: str
    command: tuple[str, ...]
    schedule: Schedule
    acts: bool = True


class Clock:
    """Counts the steps of this process; at the border of each round it reports and waits for the next turn."""

    def __init__(self, schedule: Schedule, report_fd: int, token_fd: int):
        self.schedule, self.report_fd, self.token_fd = schedule, report_fd, token_fd
        self.steps, self.border, self.rounds = 0, schedule.warm_up, 0
        self.first_step, self.start, self.cpu_start, self.decisions = 0.0, 0.0, 0.0, []

    def tick(self) -> None:
        """Call this at the start of each step: what the step then causes belongs to it."""
        if self.steps == 0:
            self.first_step = time.perf_counter()
        if self.steps == self.border:
            wait_for_gpu()
            now = time.perf_counter()
            if self.steps == self.schedule.warm_up:
                self.wait_for_turn({"first_step": self.first_step})
            else:
                self.rounds += 1
                report = {"steps": self.schedule.steps_per_round, "clocked": self.steps, "peak_mb": peak_memory_mb()}
                report |= {"start": self.start, "end": now, "cpu_s": time.process_time() - self.cpu_start}
                self.wait_for_turn(report)
            if self.rounds < self.schedule.rounds:
                self.border += self.schedule.steps_per_round
            self.start, self.cpu_start = time.perf_counter(), time.process_time()
        self.steps += 1

    def decided(self, seconds: float) -> None:
        """Outside of training, once that is measured: a policy took this long to act."""
        if self.rounds < self.schedule.rounds:
            return
        self.decisions.append(seconds)
        if len(self.decisions) == DECISIONS:
            self.wait_for_turn({"decision_us": 1e6 * statistics.median(self.decisions)})
            self.decisions.clear()

    def wait_for_turn(self, report: dict) -> None:
        os.write(self.report_fd, json.dumps(report).encode() + b"\n")
        if not os.read(self.token_fd, 1):
            os._exit(1)  # nobody is listening any more


@functools.cache
def process_clock() -> Clock:
    """The one clock of a competitor's process."""
    settings = json.loads(os.environ["BENCHMARK_CLOCK"])
    return Clock(Schedule(**settings["schedule"]), settings["report_fd"], settings["token_fd"])


def wait_for_gpu() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak_memory_mb() -> Optional[float]:
    """The most memory that this process ever had resident, replay pages included."""
    with contextlib.suppress(OSError):
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    return None


class Clocked(gym.Wrapper):
    """The first instance that is stepped is the one trained on; what others see is evaluation: decisions are timed."""

    trained_on = None

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.clock, self.observed = process_clock(), 0.0

    def step(self, action):
        now = time.perf_counter()
        Clocked.trained_on = Clocked.trained_on or self
        if self is Clocked.trained_on:
            self.clock.tick()
        else:
            self.clock.decided(now - self.observed)
        result = self.env.step(action)
        self.observed = time.perf_counter()
        return result

    def reset(self, **options):
        result = self.env.reset(**options)
        self.observed = time.perf_counter()
        return result


def make_clocked(render_mode: Optional[str] = None) -> gym.Env:
    gym.logger.min_level = gym.logger.ERROR  # v4 is meant: no advice to upgrade
    env_id = process_clock().schedule.env_id
    return Clocked(gym.make(env_id, render_mode=render_mode, disable_env_checker=True))


# the real environment brings its own time limit and order enforcing
gym.register("Clocked-v0", entry_point=make_clocked, order_enforce=False, disable_env_checker=True)


def train_peer(name: str, device: str, learning_starts: int, buffer_size: int) -> None:
    """In a competitor's process: a peer's SAC with our settings, then its deterministic policy until we are stopped."""
    module = importlib.import_module(PEERS[name][0])
    settings = {"learning_starts": learning_starts, "buffer_size": buffer_size, "batch_size": BATCH_SIZE, "seed": 0}
    settings |= {"train_freq": 1, "gradient_steps": 1, "policy_kwargs": {"net_arch": [HIDDEN, HIDDEN]}}
    if name == "sb3":
        settings["device"] = device
    model = module.SAC("MlpPolicy", gym.make(CLOCKED), **settings)
    model.learn(total_timesteps=process_clock().schedule.end)
    env = gym.make(CLOCKED)
    obs, _ = env.reset(seed=0)
    while True:
        action, _ = model.predict(obs, deterministic=True)
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()


class Network:
    """The products of `copies` affine networks side by side, into kept buffers; a batch's columns are states."""

    def __init__(self, widths: tuple[int, ...], copies: int, batch_size: int, device: str, layout: tuple[bool, bool]):
        import torch

        def matrices(rows: int, columns: int, transposed: bool) -> torch.Tensor:
            if transposed:
                return matrices(columns, rows, False).mT
            return torch.randn(copies, rows, columns, device=device) * rows**-0.5

        by_rows, weights_by_rows = layout
        sizes = list(itertools.pairwise(widths))
        self.h = [matrices(width, batch_size, by_rows) for width in widths]
        self.g = [matrices(width, batch_size, by_rows) for width in widths]
        self.w = [matrices(n_out, n_in, weights_by_rows) for n_in, n_out in sizes]
        self.d = [matrices(n_out, n_in, weights_by_rows) for n_in, n_out in sizes]

    def forward(self) -> list[Product]:
        """h_i+1 = W_i h_i"""
        return list(zip(self.w, self.h[:-1], self.h[1:], strict=True))

    def weight_gradients(self) -> list[Product]:
        """dL/dW_i = g_i+1 h_i'"""
        return [(g, h.mT, d) for g, h, d in zip(self.g[1:], self.h[:-1], self.d, strict=True)]

    def input_gradients(self) -> list[Product]:
        """g_i = W_i' g_i+1, down to the first layer's output"""
        return [(self.w[i].mT, self.g[i + 1], self.g[i]) for i in reversed(range(1, len(self.w)))]

    def gradient_of_last_inputs(self, n: int) -> list[Product]:
        """The same for the last n of the network's own inputs: the actions."""
        return [(self.w[0][:, :, -n:].mT, self.g[1], self.g[0][:, -n:])]


def floor_products(
    n_s: int, n_a: int, batch_size: int, neural_actor: bool, device: str, layout: tuple[bool, bool]
) -> list[Product]:
    """What one step of SAC cannot avoid: the critics' products, and those of an actor that is a network as well."""
    widths = (n_s + n_a, HIDDEN, HIDDEN, 1)
    critic, target = (Network(widths, 2, batch_size, device, layout) for _ in range(2))
    products = target.forward() + critic.forward() + critic.weight_gradients() + critic.input_gradients()
    products += critic.forward() + critic.input_gradients() + critic.gradient_of_last_inputs(n_a)
    if neural_actor:  # it acts in the next states for the target, and in the states for its own update
        actor, next_actor = (Network((n_s, HIDDEN, HIDDEN, 2 * n_a), 1, batch_size, device, layout) for _ in range(2))
        products += next_actor.forward() + actor.forward() + actor.weight_gradients() + actor.input_gradients()
    return products


def as_calls(products: list[Product], one_by_one: bool) -> list[tuple[Callable, Product]]:
    """The calls that compute them: batched over the networks or one by one; an outer product is elementwise."""
    import torch

    calls = []
    for left, right, out in products:
        if out.stride(-1) != 1:  # the same product, transposed
            left, right, out = right.mT, left.mT, out.mT
        if left.shape[-1] == 1:
            calls.append((torch.mul, (left, right, out)))
        elif one_by_one:
            calls += [(torch.mm, matrices) for matrices in zip(left, right, out, strict=True)]
        else:
            calls.append((torch.bmm, (left, right, out)))
    return calls


def run_calls(calls: list[tuple[Callable, Product]]) -> None:
    for product, (left, right, out) in calls:
        product(left, right, out=out)


def run_floor(n_s: int, n_a: int, neural_actor: bool, device: str) -> None:
    """In a competitor's process: nothing but the products, in the fastest way, until we are stopped."""
    import torch

    torch.set_num_threads(1)
    variants = []
    for *layout, one_by_one in itertools.product((False, True), repeat=3):
        products = floor_products(n_s, n_a, BATCH_SIZE, neural_actor, device, tuple(layout))
        variants.append(as_calls(products, one_by_one))
    seconds = functools.partial(quickest_time, repeat=10)
    ways = [(seconds(calls), calls, "MKL") for calls in variants]
    if let_onednn_multiply():
        ways += [(seconds(calls), calls, "oneDNN") for calls in variants]
    _, fastest, library = min(ways, key=operator.itemgetter(0))
    if library == "MKL":
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    clock = process_clock()
    while True:
        clock.tick()
        run_calls(fastest)


def let_onednn_multiply() -> bool:
    """Have float32's products by oneDNN, as the trainers do, unless it would round them to less."""
    import torch

    torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # its permission to round, which only AMX makes use of
    x = torch.full((2, HIDDEN, HIDDEN), 1 + 2**-12)
    if (x @ x == HIDDEN).any():
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    return torch.backends.mkldnn.matmul.fp32_precision == "bf16"


def quickest_time(calls: list[tuple[Callable, Product]], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run_calls(calls)
        wait_for_gpu()
        times.append(time.perf_counter() - start)
    return min(times)


def trainer_command(name: str, schedule: Schedule, args: Args, device: str, **flags: int) -> tuple[str, ...]:
    """Our own trainers as a user starts them; their first evaluation comes when all rounds are over."""
    settings = {"learning_starts": args.learning_starts, "buffer_size": args.buffer_size, "batch_size": BATCH_SIZE}
    settings |= {"eval_every": schedule.end, "eval_episodes": 10_000, "total_timesteps": schedule.end + 1} | flags
    words = [word for flag, value in settings.items() for word in ("--" + flag.replace("_", "-"), str(value))]
    script, *own = TRAINERS[name]
    words += ["--cuda" if device == "cuda" else "--no-cuda", "--compile" if args.compile else "--no-compile"]
    return (sys.executable, str(ROOT / script), *own, "--env-id", CLOCKED, "--num-threads", "1", *words)


def in_process(function: Callable, *arguments) -> tuple[str, ...]:
    """The command that calls a function of this file."""
    return (sys.executable, "-c", f"import benchmark; benchmark.{function.__name__}{arguments!r}")


def competitors(args: Args, sizes: tuple[int, int], device: str) -> list[Competitor]:
    schedule = Schedule(args.env_id, args.learning_starts + SETTLE, args.steps_per_round, args.rounds)
    names = list(dict.fromkeys(args.only or (*TRAINERS, *args.peers, "floor")))
    if "floor" in names and NEURAL & set(names):
        names.append("floor-l")
    field = []
    for name in names:
        if name in TRAINERS:
            field.append(Competitor(name, trainer_command(name, schedule, args, device), schedule))
        elif name in PEERS:
            command = in_process(train_peer, name, device, args.learning_starts, args.buffer_size)
            field.append(Competitor(name, command, schedule))
        else:
            command = in_process(run_floor, *sizes, name == "floor-l", device)
            field.append(Competitor(name, command, replace(schedule, warm_up=SETTLE), acts=False))
    return field


def sweep_competitors(args: Args, device: str) -> list[Competitor]:
    """smose_sac.py with more experts and larger batches, in rounds of a quarter of the length."""
    steps = max(2, args.steps_per_round // 8 * 2)
    schedule = Schedule(args.env_id, args.learning_starts + SETTLE, steps, args.rounds)
    field = []
    for batch_size, n_experts in itertools.product(args.batch_sizes, args.experts):
        flags = {"batch_size": batch_size, "n_experts": n_experts}
        command = trainer_command("smose", schedule, args, device, **flags)
        field.append(Competitor(f"M = {n_experts}, batch {batch_size}", command, schedule))
    return field


class Process:
    """A competitor that runs only when it is its turn."""

    def __init__(self, competitor: Competitor, folder: Path, device: str):
        self.competitor, self.log = competitor, folder / f"{competitor.name}.log"
        self.reports, report_fd = os.pipe()
        token_fd, self.tokens = os.pipe()
        settings = {"schedule": asdict(competitor.schedule), "report_fd": report_fd, "token_fd": token_fd}
        paths = [str(ROOT / "scripts"), os.getcwd(), os.environ.get("PYTHONPATH")]
        env = os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "TMPDIR": str(folder)}
        env |= {"BENCHMARK_CLOCK": json.dumps(settings)} | ({"JAX_PLATFORMS": "cpu"} if device == "cpu" else {})
        self.started = time.perf_counter()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                competitor.command, cwd=folder, env=env, pass_fds=(report_fd, token_fd), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        os.close(report_fd)
        os.close(token_fd)
        self.lines = os.fdopen(self.reports)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        self.lines.close()
        os.close(self.tokens)

    def report(self) -> dict:
        """What the clock says next; a competitor that ended instead has left its reason in its last line."""
        line = self.lines.readline()
        if not line:
            said = self.log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            name = LABELS.get(self.competitor.name, self.competitor.name)
            raise UserError(f"{name} ended before it was measured: {said[-1].removeprefix('error: ')}")
        return json.loads(line)

    def turn(self) -> dict:
        with contextlib.suppress(BrokenPipeError):  # report() says it better
            os.write(self.tokens, b".")
        return self.report()


def measure(field: list[Competitor], device: str, title: str) -> list[dict]:
    """Start all, one after the other, and let them take turns; one dict of raw numbers per competitor."""
    rounds = max(competitor.schedule.rounds for competitor in field)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        total = len(field) * (1 + rounds)
        bar = stack.enter_context(tqdm(total=total, desc=title, disable=None, leave=False))
        processes, results = [], []
        for competitor in field:
            process = stack.enter_context(Process(competitor, folder, device))
            startup = process.report()["first_step"] - process.started
            processes.append(process)
            results.append({"name": competitor.name, "startup_s": startup, "rounds": [], "decisions_us": []})
            bar.update()
        for _ in range(rounds):
            for process, result in zip(processes, results, strict=True):
                result["rounds"].append(process.turn())
                bar.update()
        for result in results:
            result["peak_mb"] = result["rounds"][-1]["peak_mb"]
        for _ in range(DECISION_ROUNDS):
            for process, result in zip(processes, results, strict=True):
                if process.competitor.acts:
                    result["decisions_us"].append(process.turn()["decision_us"])
    return results


def measure_full_memory(args: Args, device: str) -> list[dict]:
    """Peak memory of the trainers when every row of the replay buffer is in use.

    The buffer is filled by random steps, with evaluations and checkpoints on the way as in any run, and then learned
    from: all that a full run does, except that most of its updates are left out.
    """
    schedule = Schedule(args.memory_env, args.buffer_size + SETTLE, 200, 1)
    flags = {"learning_starts": args.buffer_size, "eval_every": 25_000, "eval_episodes": 1}
    results = []
    for name in [name for name in TRAINERS if not args.only or name in args.only]:
        command = trainer_command(name, schedule, args, device, **flags)
        title = f"{LABELS[name]} fills its replay buffer"
        (result,) = measure([Competitor(name, command, schedule, acts=False)], device, title)
        results.append({"name": name, "peak_mb": result["peak_mb"]})
    return results


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    q1, median, q3 = np.percentile(values, (25, 50, 75)).tolist()
    return {"median": median, "q1": q1, "q3": q3}


def step_times(result: dict) -> np.ndarray:
    """Seconds per step, one per round."""
    return np.array([(r["end"] - r["start"]) / r["steps"] for r in result["rounds"]])


def summarise(results: list[dict]) -> list[dict]:
    """Raw rounds to rates, ratios and shares; round r is compared with the others' round r."""
    times = {result["name"]: step_times(result) for result in results}
    rows = []
    for result in results:
        name, own = result["name"], times[result["name"]]
        floor = "floor-l" if name in NEURAL else "floor"
        has_floor = floor in times and not name.startswith("floor")
        row = {"name": name, "steps_per_second": spread(1 / own), "cost": spread(own / step_times(results[0]))}
        row["steps_per_cpu_second"] = spread([r["steps"] / r["cpu_s"] for r in result["rounds"]])
        row["ratio_to_sb3"] = spread(times["sb3"] / own) if "sb3" in times else None
        row["share_of_floor"] = spread(times["floor"] / own) if has_floor else None
        row["share_of_floor_with_actor"] = spread(times[floor] / own) if has_floor else None
        row["decision_us"] = spread(result["decisions_us"]) if result["decisions_us"] else None
        rows.append(row | {key: result[key] for key in ("peak_mb", "startup_s", "rounds")})
    return rows


def show(value: Optional[dict], digits: int, unit: str = "", factor: float = 1) -> str:
    """`median (q1-q3)`, or a dash."""
    if value is None:
        return "-"
    median, q1, q3 = (f"{factor * value[name]:.{digits}f}" for name in ("median", "q1", "q3"))
    return f"{median}{unit} ({q1}-{q3})"


def memory(mb: Optional[float]) -> str:
    return "-" if mb is None else f"{mb:.0f} MB"


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Markdown, aligned so that it reads well on a terminal too."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for cells in (header, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |")
    print(flush=True)


def print_rows(rows: list[dict], args: Args, device: str) -> None:
    rounds = f"{args.rounds} alternating rounds of {args.steps_per_round} steps"
    print(f"{args.env_id} on {device}: {rounds}, batch {BATCH_SIZE}; median (quartiles)\n")
    header = ["", "steps/s", "x Stable-Baselines3", "floor's share of a step", "peak memory", "decision", "start-up"]
    cells = []
    for row in rows:
        cells.append([LABELS[row["name"]], show(row["steps_per_second"], 1), show(row["ratio_to_sb3"], 2)])
        cells[-1] += [show(row["share_of_floor_with_actor"], 0, "%", 100), memory(row["peak_mb"])]
        cells[-1] += [show(row["decision_us"], 1, " µs"), f"{row['startup_s']:.1f} s"]
    print_table(header, cells)
    kept = args.learning_starts + SETTLE + args.rounds * args.steps_per_round
    print(f"Peak memory is that of this short run: {kept:,} transitions in the replay buffer. Decision: the time that")
    print("the deployed policy takes from an observation to its action. Start-up: until the first step.\n", flush=True)


def print_sweep(rows: list[dict], device: str) -> None:
    print(f"smose_sac.py on {device}: cost of a step relative to {rows[0]['name']}; median (quartiles)\n")
    cells = []
    for row in rows:
        cells.append([row["name"], show(row["cost"], 2), show(row["steps_per_second"], 1)])
        cells[-1] += [memory(row["peak_mb"]), show(row["decision_us"], 1, " µs")]
    print_table(["", "cost", "steps/s", "peak memory", "decision"], cells)


def print_memory(rows: list[dict], args: Args, device: str) -> None:
    print(f"{args.memory_env} on {device}: peak memory with all {args.buffer_size:,} rows of the replay in use\n")
    print_table(["", "peak memory"], [[LABELS[row["name"]], memory(row["peak_mb"])] for row in rows])


def find_gpu() -> Optional[str]:
    """Its name, if PyTorch can use one; asked in another process, to keep this one small."""
    ask = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    if asked.returncode:
        raise UserError("PyTorch cannot be imported; install it as the README says")
    return asked.stdout.strip() or None


def describe_machine(core: Optional[int], gpu: Optional[str]) -> dict:
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        cpu = (re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or [cpu])[0]
    versions = {"python": platform.python_version()}
    for package in ("torch", "gymnasium", "mujoco", "stable-baselines3", "sbx-rl"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    about = {"cpu": cpu, "cores": os.cpu_count(), "core": core, "gpu": gpu}
    return about | {"load": os.getloadavg()[0], "versions": versions}


def print_machine(machine: dict) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    print(f"{machine['cpu']}, {machine['cores']} cores{', ' + machine['gpu'] if machine['gpu'] else ''}; {versions}")
    where = "" if machine["core"] is None else f", all on core {machine['core']}"
    print(f"one thread each{where}; load before the start {machine['load']:.2f}\n", flush=True)
    if machine["load"] > 0.5:
        print("others are at work on this machine: expect lower rates and a wider spread\n", flush=True)


def check_args(args: Args) -> tuple[int, int]:
    """Refuse what cannot be measured, before anything is started; returns the environment's sizes."""
    limits = {"rounds": (1, 10_000), "steps_per_round": (2, 10**6), "buffer_size": (1, 10**9)}
    for name, (low, high) in (limits | {"learning_starts": (1, 10**7)}).items():
        if not low <= getattr(args, name) <= high:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} {getattr(args, name)} is out of range; give a number from {low} to {high}")
    if args.steps_per_round % 2:
        raise UserError(f"--steps-per-round {args.steps_per_round} is odd; the actor learns on every second step")
    if args.sweep and not (args.experts and args.batch_sizes):
        raise UserError("--experts and --batch-sizes need numbers; use --no-sweep to leave the sweep out")
    for name in args.only or args.peers:
        if name in PEERS and importlib.util.find_spec(PEERS[name][0]) is None:
            package = PEERS[name][1]
            raise UserError(f"{package} is not installed; pip install {package}, or go without by --peers or --only")
    if args.output:
        output_file(args.output)
    if args.memory_env:
        environment_sizes(args.memory_env)
    return environment_sizes(args.env_id)


def environment_sizes(env_id: str) -> tuple[int, int]:
    gym.logger.min_level = gym.logger.ERROR
    sys.path.append(os.getcwd())  # where `module:Env-v0` may lie, for the competitors as well
    try:
        env = gym.make(env_id)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"cannot make environment {env_id!r}: {reason[0].rstrip('.')}; give another --env-id") from None
    for space in (env.observation_space, env.action_space):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise UserError(f"{env_id} has the space {space}; SAC needs flat boxes of numbers, give another --env-id")
    return env.observation_space.shape[0], env.action_space.shape[0]


def choose_core(core: Optional[int]) -> Optional[int]:
    """Bind this process to one core, and so all that it starts: a library cannot take two where others have one."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    allowed = os.sched_getaffinity(0)
    core = max(allowed) if core is None else core
    if core not in allowed:
        raise UserError(f"--core {core} is not there; this process may use {', '.join(map(str, sorted(allowed)))}")
    os.sched_setaffinity(0, {core})
    return core


def benchmark(args: Args) -> dict:
    """Measure and print part by part; returns all numbers."""
    sizes = check_args(args)
    gpu = None if args.device == "cpu" else find_gpu()
    if args.device == "cuda" and not gpu:
        raise UserError("--device cuda, but PyTorch sees no GPU here; leave --device out")
    devices = [args.device] if args.device != "auto" else ["cpu", "cuda"] if gpu else ["cpu"]
    machine = describe_machine(choose_core(args.core), gpu)
    print_machine(machine)
    numbers = {"format": "smose-benchmark", "machine": machine, "args": asdict(args), "devices": {}}
    for device in devices:
        part = numbers["devices"][device] = {}
        part["rows"] = summarise(measure(competitors(args, sizes, device), device, "training"))
        print_rows(part["rows"], args, device)
        if args.sweep and (not args.only or "smose" in args.only):
            part["sweep"] = summarise(measure(sweep_competitors(args, device), device, "sweep"))
            print_sweep(part["sweep"], device)
        if args.memory_env:
            part["memory"] = measure_full_memory(args, device)
            print_memory(part["memory"], args, device)
    return numbers


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through the clean-up
    args = parse_args(Args, __doc__)
    numbers = benchmark(args)
    if args.output:
        write_whole(Path(args.output), json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    end_on_mistakes(main)
