"""Export of a deployed policy for people who don't run PyTorch.

    python scripts/export.py runs/Reacher-v4__smose_sac__1__1700000000 --format c
    python scripts/export.py RUN/actor_best.safetensors --format python --output reacher.py
    python scripts/export.py RUN --format onnx
    python scripts/export.py RUN --format json

  c       one C99 file with named observations and actions, no allocation, nothing but <math.h> (link with -lm)
  python  one file with one function that needs only the standard library
  onnx    a graph for onnxruntime, with a batch dimension (needs requirements-dev.txt)
  json    the weights with names and the formula, for any other program

The export is the deterministic policy: action = scale * tanh(theta_m s + b_m) + bias with m the expert of the highest
score; experts are numbered from 1 as in the paper. SAC actors are exported as their ReLU network. Before the file is
put in place it is run on 10,000 states, recorded in replay.npy beside the actor as far as there are any and random
otherwise, and compared with the saved actor in PyTorch; if they differ by more than float32 rounding explains, nothing
is written. A C file is compiled for that with the local compiler (cc, or what CC says).
"""

from command_line import UserError, end_on_mistakes, output_file, parse_args, read_json, write_whole

# from here on Ctrl-C is quiet
# isort: split

import importlib.util
import json
import os
import re
import shlex
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Optional

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from names import read_names
from saved_actor import Actor, load_actor

N_STATES = 10_000
SUFFIX = {"c": ".c", "python": ".py", "onnx": ".onnx", "json": ".json"}
C_FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2"]


@dataclass
class Args:
    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATH")]
    """a run folder (its actor.safetensors is read) or a *.safetensors file of an actor"""
    format: Literal["c", "python", "onnx", "json"]
    """what to write"""
    output: Optional[str] = None
    """the file to write (default: policy.c, policy.py, policy.onnx or policy.json beside the actor)"""
    names: Optional[str] = None
    """a JSON file that names the observations and actions: {"obs": [...], "action": [...]}"""


class VerificationError(UserError):
    """The export does not do what the actor does."""


def inert(text: str) -> str:
    """Text from a file for a comment or a string in C and Python: nothing that could end either of them."""
    return " ".join(re.sub(r"[^\w .,:;()\[\]+=^/-]", " ", text, flags=re.ASCII).split())


def decimal(x: float) -> str:
    """The shortest decimal that is this float32 and no other."""
    text = str(np.float32(x))
    return text if "." in text or "e" in text else f"{text}.0"


def title(actor: Actor) -> str:
    kind = f"{actor.n_experts} linear experts" if actor.n_experts else f"{actor.n_hidden} hidden layer(s)"
    size = f"{kind}, {actor.n_read} numbers that are not zero"
    return inert(f"{actor.name} policy for {actor.env_id}: {size}, {actor.steps} steps of training, seed {actor.seed}")


def formula(actor: Actor) -> str:
    if not actor.n_experts:
        return "x = relu(hidden_weight x + hidden_bias) per hidden layer, from x = obs; " + (
            "action = action_scale * tanh(mean_weight x + mean_bias) + action_bias"
        )
    end = "action = action_scale * tanh(mean) + action_bias"
    if actor.top_k == 1 and actor.gate == "one-hot":
        return (
            "score_m = router_weight_m . obs + router_bias_m; m = the expert of the highest score (first on a tie); "
            f"mean = mean_weight_m obs + mean_bias_m; {end}"
        )
    over = f"the top {actor.top_k}" if actor.gate == "one-hot" else "all experts"
    return (
        f"score_m = router_weight_m . obs + router_bias_m; w_m = softmax of the scores over {over}; "
        f"mean = sum over the top {actor.top_k} of w_m (mean_weight_m obs + mean_bias_m); {end}"
    )


def c_array(array: np.ndarray, indent: str = "    ") -> str:
    """Nested braces of float literals."""
    if array.ndim == 1:
        return "{" + ", ".join(f"{decimal(x)}f" for x in array) + "}"
    inner = f",\n{indent}    ".join(c_array(row, indent + "    ") for row in array)
    return f"{{\n{indent}    {inner}\n{indent}}}"


def c_table(name: str, array: np.ndarray) -> str:
    dimensions = "".join(f"[{size}]" for size in array.shape)
    return f"static const float {name}{dimensions} = {c_array(array, '')};\n"


TABLES_C = """\
static float router_score(int m, const float obs[])
{
    float x = router_bias[m];
    int i;

    for (i = 0; i < SMOSE_OBS_SIZE; i++)
        x += router_weight[m][i] * obs[i];
    return x;
}

static float expert_mean(int m, int a, const float obs[])
{
    float x = mean_bias[m][a];
    int i;

    for (i = 0; i < SMOSE_OBS_SIZE; i++)
        x += mean_weight[m][a][i] * obs[i];
    return x;
}
"""

SMOSE_C = """\
{
    float score[SMOSE_EXPERTS];
    int best = 0, a, m;

    for (m = 0; m < SMOSE_EXPERTS; m++) {
        score[m] = router_score(m, obs);
        if (score[m] > score[best])
            best = m;
    }
    for (a = 0; a < SMOSE_ACTION_SIZE; a++)
        action[a] = action_scale[a] * tanhf(expert_mean(best, a, obs)) + action_bias[a];
    return best + 1;
}
"""

SMOSE_MIXED_C = """\
{
    float score[SMOSE_EXPERTS], total = 0.0f;
    int top[SMOSE_TOP_K], best = 0, a, j, k, m;

    for (m = 0; m < SMOSE_EXPERTS; m++) {
        score[m] = router_score(m, obs);
        if (score[m] > score[best])
            best = m;
    }
    for (k = 0; k < SMOSE_TOP_K; k++) {
        top[k] = -1;
        for (m = 0; m < SMOSE_EXPERTS; m++) {
            for (j = 0; j < k && top[j] != m; j++)
                ;
            if (j == k && (top[k] < 0 || score[m] > score[top[k]]))
                top[k] = m;
        }
    }
    for (m = 0; m < SMOSE_EXPERTS; m++)
        total += expf(score[m] - score[best]);
    for (a = 0; a < SMOSE_ACTION_SIZE; a++) {
        float mean = 0.0f;
        for (k = 0; k < SMOSE_TOP_K; k++)
            mean += expf(score[top[k]] - score[best]) / total * expert_mean(top[k], a, obs);
        action[a] = action_scale[a] * tanhf(mean) + action_bias[a];
    }
    return best + 1;
}
"""

SAC_LAYER_C = """\
    for (j = 0; j < SIZE; j++) {
        float x = NAME_bias[j];
        for (i = 0; i < INPUTS; i++)
            x += NAME_weight[j][i] * INPUT[i];
        OUTPUT;
    }
"""


def c_sums(signature: str, row: str, labels: list[str], weight: np.ndarray, bias: np.ndarray, obs: list[str]) -> str:
    """A function that returns one row of weight @ obs + bias, each written out without the terms that are zero."""
    cases = []
    for i, (w, b) in enumerate(zip(weight, bias, strict=True)):
        terms = [
            f"{decimal(x)}f\xa0*\xa0obs[{name}]" for x, name in zip(w, obs, strict=True) if x
        ]  # wraps between terms
        terms = [f"{decimal(b)}f"] * bool(b or not terms) + terms
        rows = textwrap.wrap("return " + " + ".join(terms).replace("+ -", "- ") + ";", 112, subsequent_indent="    ")
        case = f"case {i}:" if i < len(bias) - 1 else "default:"
        cases += [f"    {case} /* {labels[i]} */", *(f"        {row}" for row in rows)]
    body = "\n".join(cases).replace("\xa0", " ")
    unused = "" if weight.any() else "    (void)obs;\n"
    return f"static float {signature}\n{{\n{unused}    switch ({row}) {{\n{body}\n    }}\n}}\n"


def c_smose(actor: Actor, names: dict) -> tuple[dict[str, np.ndarray], str, str]:
    """The tables, the functions that smose_act calls, and its body."""
    w = actor.weights
    tables = {"router_weight": w["router.weight"], "router_bias": w["router.bias"]}
    tables |= {"mean_weight": w["experts.mean.weight"], "mean_bias": w["experts.mean.bias"]}
    sums = TABLES_C
    if actor.n_read < sum(table.size for table in tables.values()) / 2:  # a short policy reads as equations
        obs = [f"SMOSE_OBS_{entry['ascii']}" for entry in names["obs"]]
        experts = [f"expert {m + 1}" for m in range(actor.n_experts)]
        torques = [f"{expert}, {entry['ascii']}" for expert in experts for entry in names["action"]]
        weight, bias = w["experts.mean.weight"].reshape(-1, actor.obs_size), w["experts.mean.bias"].reshape(-1)
        scores = c_sums(
            "router_score(int m, const float obs[])", "m", experts, w["router.weight"], w["router.bias"], obs
        )
        row = "m * SMOSE_ACTION_SIZE + a"
        means = c_sums("expert_mean(int m, int a, const float obs[])", row, torques, weight, bias, obs)
        tables, sums = {}, f"{scores}\n{means}"
    if actor.top_k == 1 and actor.gate == "one-hot":
        return tables, sums, SMOSE_C
    over_all = "    for (m = 0; m < SMOSE_EXPERTS; m++)\n        total += expf(score[m] - score[best]);"
    over_top = "    for (k = 0; k < SMOSE_TOP_K; k++)\n        total += expf(score[top[k]] - score[best]);"
    return tables, sums, SMOSE_MIXED_C if actor.gate == "softmax" else SMOSE_MIXED_C.replace(over_all, over_top)


def c_sac(actor: Actor) -> tuple[dict[str, np.ndarray], str, str]:
    """The tables, the functions that sac_act calls (none), and its body."""
    tables, declarations, loops = {}, "", ""
    names = [f"hidden.{layer}" for layer in range(actor.n_hidden)] + ["mean"]
    source = "obs"
    for layer, name in enumerate(names):
        c_name = name.replace(".", "")
        tables |= {f"{c_name}_{part}": actor.weights[f"{name}.{part}"] for part in ("weight", "bias")}
        size, inputs = actor.weights[f"{name}.weight"].shape
        output = f"x{layer}[j] = x > 0.0f ? x : 0.0f"
        if name == "mean":
            output = "action[j] = action_scale[j] * tanhf(x) + action_bias[j]"
        else:
            declarations += f"    float x{layer}[{size}];\n"
        filled = {"SIZE": str(size), "NAME": c_name, "INPUTS": str(inputs), "INPUT": source, "OUTPUT": output}
        loops += re.sub(r"SIZE|NAME|INPUTS|INPUT|OUTPUT", lambda found, filled=filled: filled[found[0]], SAC_LAYER_C)
        source = f"x{layer}"
    return tables, "", f"{{\n{declarations}    int i, j;\n\n{loops}}}\n"


def c_source(actor: Actor, names: dict) -> str:
    """One C99 file: enums of names, constant tables and one function."""
    prefix, returned = ("smose", "int") if actor.n_experts else ("sac", "void")
    big = prefix.upper()
    tables, functions, body = c_smose(actor, names) if actor.n_experts else c_sac(actor)
    tables |= {"action_scale": actor.weights["action_scale"], "action_bias": actor.weights["action_bias"]}
    signature = f"{returned} {prefix}_act(const float obs[{big}_OBS_SIZE], float action[{big}_ACTION_SIZE])"
    ends = "fills the action" + (" and returns the expert, 1 to SMOSE_EXPERTS" if actor.n_experts else "")
    text = f"/* {title(actor)}.\n   {formula(actor)}.\n   ".replace("; ", ";\n   ")
    text += f"{prefix}_act {ends}. C99, no allocation; link with -lm. */\n#include <math.h>\n\n"
    for kind in ("obs", "action"):
        rows = enumerate(names[kind])
        listed = "".join(
            f"    {big}_{kind.upper()}_{e['ascii']} = {i}, /* {inert(e['description'])} */\n" for i, e in rows
        )
        text += f"enum {prefix}_{kind} {{\n{listed}    {big}_{kind.upper()}_SIZE = {len(names[kind])}\n}};\n\n"
    if actor.n_experts:
        text += f"enum {{ SMOSE_EXPERTS = {actor.n_experts}, SMOSE_TOP_K = {actor.top_k} }};\n\n"
    parts = [f"{signature};\n", *(c_table(*table) for table in tables.items()), functions, f"{signature}\n{body}"]
    return text + "\n".join(part for part in parts if part)


def python_tuple(array: np.ndarray, indent: str = "") -> str:
    if array.ndim == 1:
        return "(" + "".join(f"{decimal(x)}, " for x in array).rstrip() + ")"
    inner = "".join(f"{indent}    {python_tuple(row, indent + '    ')},\n" for row in array)
    return f"(\n{inner}{indent})"


def python_source(actor: Actor, names: dict) -> str:
    """One Python file: names, constant tables and the function act."""
    w = actor.weights
    tables = {"ACTION_SCALE": w["action_scale"], "ACTION_BIAS": w["action_bias"]}
    if not actor.n_experts:
        body = ["    x = obs"]
        for layer in range(actor.n_hidden):
            tables |= {f"HIDDEN{layer}_{part.upper()}": w[f"hidden.{layer}.{part}"] for part in ("weight", "bias")}
            rows = f"zip(HIDDEN{layer}_WEIGHT, HIDDEN{layer}_BIAS)"
            body.append(f"    x = [max(0.0, sum(w * v for w, v in zip(row, x)) + b) for row, b in {rows}]")
        tables |= {"MEAN_WEIGHT": w["mean.weight"], "MEAN_BIAS": w["mean.bias"]}
        body.append("    mean = [sum(w * v for w, v in zip(row, x)) + b for row, b in zip(MEAN_WEIGHT, MEAN_BIAS)]")
        result = "the action as a list"
    else:
        tables |= {"ROUTER_WEIGHT": w["router.weight"], "ROUTER_BIAS": w["router.bias"]}
        tables |= {"MEAN_WEIGHT": w["experts.mean.weight"], "MEAN_BIAS": w["experts.mean.bias"]}
        row = "sum(w * v for w, v in zip(row, obs)) + b"
        body = [f"    score = [{row} for row, b in zip(ROUTER_WEIGHT, ROUTER_BIAS)]"]
        body += ["    best = score.index(max(score))"]
        if actor.top_k == 1 and actor.gate == "one-hot":
            body += [f"    mean = [{row} for row, b in zip(MEAN_WEIGHT[best], MEAN_BIAS[best])]"]
        else:
            body += ["    e = [math.exp(s - score[best]) for s in score]"]
            body += [f"    top = sorted(range(len(score)), key=lambda m: -score[m])[:{actor.top_k}]"]
            body += ["    total = sum(e[m] for m in top)" if actor.gate == "one-hot" else "    total = sum(e)"]
            body += ["    mean = [0.0] * len(ACTIONS)", "    for m in top:"]
            body += ["        for a, (row, b) in enumerate(zip(MEAN_WEIGHT[m], MEAN_BIAS[m])):"]
            body += [f"            mean[a] += e[m] / total * ({row})"]
        result = "the action as a list, and the number of the expert (1 to M)"
    listed = {
        kind: "".join(f"    {e['ascii']!r},  # {inert(e['description'])}\n" for e in names[kind]) for kind in names
    }
    lines = [f'"""{title(actor)}.', "", formula(actor).replace("; ", ";\n") + ".", '"""', "", "import math", ""]
    lines += [f"OBSERVATIONS = (\n{listed['obs']})", f"ACTIONS = (\n{listed['action']})"]
    lines += [f"{name} = {python_tuple(array)}" for name, array in tables.items()]
    lines += ["", "", "def act(obs):", f'    """Takes the observations in their order and returns {result}."""', *body]
    action = "[s * math.tanh(x) + b for s, x, b in zip(ACTION_SCALE, mean, ACTION_BIAS)]"
    lines += [f"    return {action}" + (", best + 1" if actor.n_experts else ""), ""]
    return "\n".join(lines)


def json_source(actor: Actor, names: dict) -> str:
    """The weights with names, the formula, and one worked example."""

    def numbers(array: np.ndarray) -> list:
        return [numbers(row) if array.ndim > 1 else float(decimal(row)) for row in array]

    w = actor.weights
    policy = {"format": "smose-policy" if actor.n_experts else "sac-policy", "title": title(actor)}
    policy |= {"env_id": actor.env_id, "n_read": actor.n_read, "formula": formula(actor)}
    named = {
        kind: [{"name": e["ascii"], "text": e["text"], "description": e["description"]} for e in names[kind]]
        for kind in names
    }
    policy |= {"observations": named["obs"], "actions": named["action"]}
    if actor.n_experts:
        policy |= {"n_experts": actor.n_experts, "top_k": actor.top_k, "gate": actor.gate}
        policy["experts"] = [
            {
                "expert": m + 1,
                "router_weight": numbers(w["router.weight"][m]),
                "router_bias": float(decimal(w["router.bias"][m])),
                "mean_weight": numbers(w["experts.mean.weight"][m]),
                "mean_bias": numbers(w["experts.mean.bias"][m]),
            }
            for m in range(actor.n_experts)
        ]
    else:
        policy["hidden"] = [
            {part: numbers(w[f"hidden.{layer}.{part}"]) for part in ("weight", "bias")}
            for layer in range(actor.n_hidden)
        ]
        policy |= {"mean_weight": numbers(w["mean.weight"]), "mean_bias": numbers(w["mean.bias"])}
    policy |= {"action_scale": numbers(w["action_scale"]), "action_bias": numbers(w["action_bias"])}
    state = torch.linspace(-1, 1, actor.obs_size)[None]
    action, expert = torch_policy(actor)(state)
    policy["example"] = {"observation": numbers(state[0].numpy()), "action": numbers(action[0].numpy())}
    policy["example"] |= {"expert": int(expert[0])} if actor.n_experts else {}
    return json.dumps(policy, indent=1, ensure_ascii=False) + "\n"


def onnx_bytes(actor: Actor, names: dict) -> bytes:
    """An ONNX graph: obs [batch, n_s] to action [batch, n_a] and, for SMoSE, expert [batch]."""
    onnx = import_dev_package("onnx")
    from onnx import TensorProto, helper, numpy_helper

    w = actor.weights
    constants = {"action_scale": w["action_scale"], "action_bias": w["action_bias"]}
    outputs = [helper.make_tensor_value_info("action", TensorProto.FLOAT, ["batch", actor.action_size])]
    nodes, mean = [], "obs"

    def add(kind: str, inputs: list[str], output: str, **attributes) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    if actor.n_experts:
        m, n_a = actor.n_experts, actor.action_size
        constants |= {"router_weight": w["router.weight"], "router_bias": w["router.bias"]}
        constants |= {"mean_weight": w["experts.mean.weight"].reshape(m * n_a, -1)}
        constants |= {"mean_bias": w["experts.mean.bias"].reshape(-1), "all_experts": np.array([-1, m, n_a])}
        constants |= {"one": np.array([1]), "k": np.array([actor.top_k]), "n_experts": np.array([m])}
        constants |= {"off_on": np.array([0, 1], np.float32)}
        add("Gemm", ["obs", "router_weight", "router_bias"], "score", transB=1)
        add("ArgMax", ["score"], "best", axis=1, keepdims=0)
        add("Add", ["best", "one"], "expert")
        nodes.append(helper.make_node("TopK", ["score", "k"], ["top_score", "top"], axis=1))
        add("OneHot", ["top", "n_experts", "off_on"], "top_one_hot", axis=-1)
        add("ReduceSum", ["top_one_hot", "one"], "chosen", keepdims=0)
        add("Mul", [add("Softmax", ["score"], "p", axis=1), "chosen"], "weight")
        if actor.gate == "one-hot":
            add("ReduceSum", ["weight", "one"], "total", keepdims=1)
            add("Div", ["weight", "total"], "gate")
        else:
            add("Identity", ["weight"], "gate")
        add("Gemm", ["obs", "mean_weight", "mean_bias"], "flat_means", transB=1)
        add("Reshape", ["flat_means", "all_experts"], "means")
        add("Mul", ["means", add("Unsqueeze", ["gate", "two"], "gate_column")], "weighted")
        constants["two"] = np.array([2])
        mean = add("ReduceSum", ["weighted", "one"], "mean", keepdims=0)
        outputs.append(helper.make_tensor_value_info("expert", TensorProto.INT64, ["batch"]))
    else:
        for layer in range(actor.n_hidden):
            constants |= {f"hidden{layer}_{part}": w[f"hidden.{layer}.{part}"] for part in ("weight", "bias")}
            add("Gemm", [mean, f"hidden{layer}_weight", f"hidden{layer}_bias"], f"hidden{layer}", transB=1)
            mean = add("Relu", [f"hidden{layer}"], f"relu{layer}")
        constants |= {"mean_weight": w["mean.weight"], "mean_bias": w["mean.bias"]}
        mean = add("Gemm", [mean, "mean_weight", "mean_bias"], "mean", transB=1)
    add("Mul", [add("Tanh", [mean], "squashed"), "action_scale"], "scaled")
    add("Add", ["scaled", "action_bias"], "action")
    tensors = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants.items()]
    inputs = [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["batch", actor.obs_size])]
    graph = helper.make_graph(
        nodes, "policy", inputs, outputs, tensors, doc_string=f"{title(actor)}. {formula(actor)}."
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="smose")
    named = {kind: json.dumps([entry["ascii"] for entry in names[kind]]) for kind in names}
    properties = {"env_id": actor.env_id, "n_read": str(actor.n_read)}
    helper.set_model_props(model, properties | {"observations": named["obs"], "actions": named["action"]})
    onnx.checker.check_model(model)
    return model.SerializeToString()


def import_dev_package(name: str):
    """onnx and onnxruntime are only needed here."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise UserError(f"--format onnx needs {name}; pip install -r requirements-dev.txt") from None


def torch_policy(
    actor: Actor, dtype: torch.dtype = torch.float32
) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """The saved actor in PyTorch: from states [n, n_s] to actions [n, n_a] and experts [n], numbered from 1."""
    w = {name: torch.from_numpy(array).to(dtype) for name, array in actor.weights.items()}

    @torch.inference_mode()
    def act(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not actor.n_experts:
            x = states
            for layer in range(actor.n_hidden):
                x = F.relu(F.linear(x, w[f"hidden.{layer}.weight"], w[f"hidden.{layer}.bias"]))
            mean, expert = F.linear(x, w["mean.weight"], w["mean.bias"]), torch.zeros(len(states), dtype=torch.int64)
        else:
            logits = F.linear(states, w["router.weight"], w["router.bias"])
            top = logits.sort(dim=1, descending=True, stable=True).indices[:, : actor.top_k]
            p = logits.softmax(1).gather(1, top)
            p = p / p.sum(1, keepdim=True) if actor.gate == "one-hot" else p
            means = torch.einsum("ni,mai->nma", states, w["experts.mean.weight"]) + w["experts.mean.bias"]
            chosen = means.gather(1, top[:, :, None].expand(-1, -1, actor.action_size))
            mean, expert = (p[:, :, None] * chosen).sum(1), top[:, 0] + 1
        return w["action_scale"] * torch.tanh(mean) + w["action_bias"], expert

    return act


def seconds_per_call(function: Callable, arguments: list) -> float:
    start = time.perf_counter()
    for argument in arguments:
        function(argument)
    return (time.perf_counter() - start) / len(arguments)


@dataclass
class Answers:
    """What a policy says to the states."""

    actions: np.ndarray
    experts: np.ndarray
    seconds: float
    """per decision, one state at a time"""


def run_torch(actor: Actor, states: np.ndarray) -> Answers:
    act, tensor = torch_policy(actor), torch.from_numpy(states)
    actions, experts = act(tensor)
    return Answers(actions.numpy(), experts.numpy(), seconds_per_call(act, list(tensor[:2000, None])))


C_HARNESS = """
#include "POLICY"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int main(void)
{
    static float states[COUNT][BIG_OBS_SIZE], actions[COUNT][BIG_ACTION_SIZE];
    static int experts[COUNT];
    FILE *in = fopen("states", "rb"), *out = fopen("answers", "wb");
    long calls = 0;
    int i;
    clock_t start;
    if (!in || !out || fread(states, sizeof states, 1, in) != 1)
        return EXIT_FAILURE;
    start = clock();
    do {
        for (i = 0; i < COUNT; i++)
            CALL;
        calls += COUNT;
    } while (clock() - start < CLOCKS_PER_SEC / 20);
    printf("%g", (double)(clock() - start) / CLOCKS_PER_SEC / (double)calls);
    if (fwrite(actions, sizeof actions, 1, out) != 1 || fwrite(experts, sizeof experts, 1, out) != 1)
        return EXIT_FAILURE;
    return fclose(out);
}
"""


def run_c(file: Path, actor: Actor, states: np.ndarray) -> Answers:
    """Compiles the file with warnings as errors and runs it on the states."""
    try:
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError as error:
        raise UserError(f"CC={os.environ['CC']} is no command ({error}); set CC to a C compiler") from None
    n, n_a = len(states), actor.action_size
    call = "experts[i] = smose_act(states[i], actions[i])" if actor.n_experts else "sac_act(states[i], actions[i])"
    filled = {"POLICY": file.name, "COUNT": str(n), "BIG": "SMOSE" if actor.n_experts else "SAC", "CALL": call}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / file.name).write_bytes(file.read_bytes())
        harness = re.sub("POLICY|COUNT|BIG|CALL", lambda found: filled[found[0]], C_HARNESS)
        (Path(folder) / "harness.c").write_text(harness, encoding="utf-8")
        states.tofile(Path(folder) / "states")
        command = [*compiler, *C_FLAGS, "harness.c", "-o", "harness", "-lm"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
        except OSError:
            raise UserError(f"no C compiler '{compiler[0]}' to check the export with; install one or set CC") from None
        if done.returncode:
            raise VerificationError(f"{compiler[0]} does not compile it: {' '.join(done.stderr.split())[:300]}")
        done = subprocess.run([Path(folder) / "harness"], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise VerificationError(f"the compiled policy ends with exit code {done.returncode}")
        answers = (Path(folder) / "answers").read_bytes()
    actions = np.frombuffer(answers, np.float32, n * n_a).reshape(n, n_a)
    return Answers(actions, np.frombuffer(answers, np.int32, n, offset=4 * n * n_a), float(done.stdout))


def run_python(file: Path, actor: Actor, states: np.ndarray) -> Answers:
    spec = importlib.util.spec_from_file_location("exported_policy", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = states.tolist()
    start = time.perf_counter()
    answers = [module.act(row) for row in rows]
    seconds = (time.perf_counter() - start) / len(rows)
    if not actor.n_experts:
        return Answers(np.array(answers), np.zeros(len(rows), int), seconds)
    return Answers(np.array([action for action, _ in answers]), np.array([expert for _, expert in answers]), seconds)


def run_onnx(file: Path, actor: Actor, states: np.ndarray) -> Answers:
    ort = import_dev_package("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(file.read_bytes(), options, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"obs": states})
    seconds = seconds_per_call(lambda state: session.run(None, {"obs": state}), list(states[:2000, None]))
    return Answers(outputs[0], outputs[1] if actor.n_experts else np.zeros(len(states), int), seconds)


def run_json(file: Path, actor: Actor, states: np.ndarray) -> Answers:
    """Follows the file's own formula, in double precision, from nothing but the file."""
    policy = json.loads(file.read_text(encoding="utf-8"))
    scale, bias = np.array(policy["action_scale"]), np.array(policy["action_bias"])
    if policy["format"] == "smose-policy":
        experts = policy["experts"]
        router_weight, router_bias = (np.array([e[f"router_{part}"] for e in experts]) for part in ("weight", "bias"))
        mean_weight, mean_bias = (np.array([e[f"mean_{part}"] for e in experts]) for part in ("weight", "bias"))
    else:
        hidden = [(np.array(layer["weight"]), np.array(layer["bias"])) for layer in policy["hidden"]]
        mean_weight, mean_bias = np.array(policy["mean_weight"]), np.array(policy["mean_bias"])

    def act(x: np.ndarray) -> tuple[np.ndarray, int]:
        if policy["format"] == "sac-policy":
            for weight, offset in hidden:
                x = np.maximum(weight @ x + offset, 0)
            return scale * np.tanh(mean_weight @ x + mean_bias) + bias, 0
        score = router_weight @ x + router_bias
        top = np.argsort(-score, kind="stable")[: policy["top_k"]]
        w = np.exp(score - score.max())
        w /= w[top].sum() if policy["gate"] == "one-hot" else w.sum()
        mean = w[top] @ (mean_weight[top] @ x + mean_bias[top])
        return scale * np.tanh(mean) + bias, int(top[0]) + 1

    start = time.perf_counter()
    answers = [act(state) for state in states.astype(np.float64)]
    seconds = (time.perf_counter() - start) / len(states)
    return Answers(np.array([action for action, _ in answers]), np.array([expert for _, expert in answers]), seconds)


WRITERS = {"c": c_source, "python": python_source, "onnx": onnx_bytes, "json": json_source}
RUNNERS = {"c": run_c, "python": run_python, "onnx": run_onnx, "json": run_json}
READ_BY = {"c": "C", "python": "Python", "onnx": "onnxruntime", "json": "NumPy reading the JSON"}


def rounding(actor: Actor, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What float32 rounding explains: the largest difference per action, and which states are as good as tied.

    The measure is PyTorch's own float32 error on these states, ten times over: a plain sum rounds worse than a BLAS.
    """
    tied = np.zeros(len(states), bool)
    if actor.n_experts:
        weight, bias = actor.weights["router.weight"], actor.weights["router.bias"]
        score = states.astype(np.float64) @ weight.T.astype(np.float64) + bias
        rounded = F.linear(*map(torch.from_numpy, (states, weight, bias))).numpy()
        size = np.abs(states) @ np.abs(weight).T + np.abs(bias)
        error = size * 10 * np.max(np.abs(rounded - score) / np.maximum(size, np.finfo(np.float32).tiny))
        order = np.argsort(-score, axis=1)[:, : actor.top_k + 1]
        ranked, ranked_error = np.take_along_axis(score, order, 1), np.take_along_axis(error, order, 1)
        tied = (ranked[:, :-1] - ranked[:, 1:] <= ranked_error[:, :-1] + ranked_error[:, 1:]).any(1)
    exact, _ = torch_policy(actor, torch.float64)(torch.from_numpy(states).double())
    rounded, _ = torch_policy(actor)(torch.from_numpy(states))
    error = (rounded - exact).abs().numpy()[~tied].max(0, initial=0)
    return 10 * error + 1e-6 * np.abs(actor.weights["action_scale"]), tied


def verification_states(actor: Actor) -> tuple[np.ndarray, int]:
    """10,000 states, and how many of them were recorded (in replay.npy beside the actor); the rest is random."""
    rng = np.random.default_rng(0)
    config, replay = actor.path.with_name("config.json"), actor.path.with_name("replay.npy")
    recorded = np.zeros((0, actor.obs_size), np.float32)
    if config.is_file() and replay.is_file():
        try:
            columns = read_json(config, "")["replay_columns"]
            table = np.load(replay, mmap_mode="r")
            written = np.flatnonzero(table[:, columns["episode"][0]] > 0)
            rows = np.sort(rng.choice(written, min(N_STATES, len(written)), replace=False))
            recorded = np.array(table[rows, slice(*columns["obs"])], np.float32)
            if recorded.shape[1:] != (actor.obs_size,) or not np.isfinite(recorded).all():
                raise ValueError(f"no {actor.obs_size} finite observations per state")
        except Exception as error:  # NumPy's reader lets a tokenizer's errors through, among others
            raise UserError(f"{replay} does not fit {config} ({error}); move it away to check random states") from None
    missing = N_STATES - len(recorded)
    spread = 10.0 ** rng.integers(-1, 2, size=(missing, 1))  # small, usual and large observations
    made_up = (spread * rng.standard_normal((missing, actor.obs_size))).astype(np.float32)
    return np.ascontiguousarray(np.concatenate([recorded, made_up])), len(recorded)


def verify(file: Path, format: str, actor: Actor, states: np.ndarray) -> str:
    """Runs the export beside the saved actor; says how well they agree, or raises VerificationError."""
    ours, theirs = run_torch(actor, states), RUNNERS[format](file, actor, states)
    allowed, tied = rounding(actor, states)
    difference = np.abs(theirs.actions - ours.actions)
    same = theirs.experts == ours.experts
    if not np.isfinite(theirs.actions).all() or (difference > allowed)[~tied].any() or not (same | tied).all():
        worst = np.nanmax(np.where(tied[:, None], 0, difference), initial=0)
        raise VerificationError(
            f"actions differ by up to {worst:.2g} and experts in {np.sum(~(same | tied))} of {len(states)} states, "
            "more than float32 rounding explains"
        )
    text = f"max difference of actions {difference[~tied].max(initial=0):.2g}"
    text += f" (float32 rounding explains {allowed.max():.2g})\n"
    if actor.n_experts:
        text += f"same expert in {100 * same.mean():.2f}% of the states"
        text += f"; in {tied.sum()} the scores are tied within float32 rounding"
        text += f", {np.sum(~same)} of these chose another expert\n" if tied.any() else "\n"
    text += (
        f"time per decision: {1e6 * theirs.seconds:.3g} us ({READ_BY[format]}), {1e6 * ours.seconds:.3g} us (PyTorch)"
    )
    return text


def export(actor: Actor, format: str, output: Path, names: dict) -> str:
    """Writes the export only once it is verified; returns what the verification found."""
    states, n_recorded = verification_states(actor)
    content = WRITERS[format](actor, names)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"policy{SUFFIX[format]}"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        report = verify(file, format, actor, states)
        write_whole(output, content)
    return f"{output}: checked on {n_recorded} recorded and {len(states) - n_recorded} random states\n{report}"


def main(args: Args) -> None:
    torch.set_num_threads(1)  # one decision is too small to share
    actor = load_actor(args.path)
    output = Path(args.output) if args.output else actor.path.with_name(f"policy{SUFFIX[args.format]}")
    names = read_names(args.names, actor.env_id, actor.obs_size, actor.action_size)
    print(export(actor, args.format, output_file(output), names))


if __name__ == "__main__":
    end_on_mistakes(lambda: main(parse_args(Args, __doc__)))
