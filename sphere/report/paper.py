"""The paper's own numbers, as it prints them: mean and +-, by the label of its table.

`SUCCESS` has the per-task tables, "average" as a task of its own; `TABLES` the others, row by row. Five seeds unless
a table says otherwise. Behind +- of a task stands the population deviation over seeds. Behind that of an average
stands the mean of the tasks' deviations, not the deviation of the seeds' averages (tests/test_report_paper.py shows
it): it does not say how sure the average is.
"""

from typing import NamedTuple


class Printed(NamedTuple):
    """A number of the paper; `std` is NaN where it prints none."""

    mean: float
    std: float = float("nan")


_METAWORLD_RL = """
Task              | PPO       | PPO(10x)  | Top-K MoE | LN        | SPHERE    | C-CHAIN   | CBP       | PW
hammer            | 0.76±0.39 | 1.00±0.00 | 0.98±0.04 | 0.40±0.42 | 0.96±0.08 | 0.90±0.16 | 1.00±0.00 | 1.00±0.00
push-wall         | 0.96±0.05 | 0.80±0.28 | 1.00±0.00 | 0.25±0.38 | 1.00±0.00 | 0.78±0.35 | 1.00±0.00 | 0.90±0.13
faucet-close      | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 0.92±0.16 | 1.00±0.00
push-back         | 0.18±0.27 | 0.33±0.47 | 0.00±0.00 | 0.23±0.39 | 0.02±0.04 | 0.20±0.40 | 0.16±0.32 | 0.00±0.00
stick-pull        | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.16±0.32 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00
handle-press-side | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00
push              | 0.68±0.34 | 0.83±0.17 | 0.82±0.27 | 0.57±0.12 | 1.00±0.00 | 0.94±0.08 | 0.96±0.05 | 0.96±0.05
shelf-place       | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00
window-close      | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00 | 1.00±0.00
peg-unplug-side   | 0.92±0.12 | 0.65±0.35 | 0.90±0.13 | 0.83±0.24 | 1.00±0.00 | 0.84±0.23 | 0.84±0.08 | 0.86±0.15
average           | 0.65±0.12 | 0.66±0.13 | 0.67±0.04 | 0.53±0.16 | 0.71±0.04 | 0.67±0.12 | 0.69±0.06 | 0.67±0.03
"""

_METAWORLD_CRL = """
Task              | PPO       | PPO(10x)  | Top-K MoE | LN        | SPHERE    | PW        | C-CHAIN   | CBP
hammer            | 1.00±0.00 | 0.97±0.05 | 0.98±0.04 | 0.48±0.43 | 0.98±0.04 | 1.00±0.00 | 0.80±0.40 | 0.60±0.45
push-wall         | 0.20±0.40 | 0.00±0.00 | 0.00±0.00 | 0.24±0.39 | 0.70±0.25 | 0.00±0.00 | 0.04±0.08 | 0.18±0.36
faucet-close      | 0.14±0.23 | 0.67±0.47 | 0.38±0.47 | 1.00±0.00 | 1.00±0.00 | 0.70±0.38 | 0.38±0.38 | 1.00±0.00
push-back         | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.14±0.28 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.18±0.36
stick-pull        | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00
handle-press-side | 0.50±0.42 | 0.45±0.45 | 0.50±0.45 | 0.82±0.36 | 0.98±0.04 | 0.62±0.39 | 0.60±0.45 | 0.70±0.40
push              | 0.00±0.00 | 0.05±0.05 | 0.00±0.00 | 0.46±0.41 | 0.22±0.17 | 0.00±0.00 | 0.00±0.00 | 0.06±0.08
shelf-place       | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00
window-close      | 0.00±0.00 | 0.00±0.00 | 0.20±0.40 | 0.62±0.43 | 1.00±0.00 | 0.03±0.04 | 0.40±0.49 | 0.20±0.40
peg-unplug-side   | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.00±0.00 | 0.02±0.04 | 0.00±0.00 | 0.02±0.04 | 0.00±0.00
average           | 0.18±0.11 | 0.21±0.10 | 0.21±0.14 | 0.38±0.23 | 0.49±0.06 | 0.23±0.08 | 0.22±0.18 | 0.29±0.21
"""

_HUMANOIDBENCH_RL = """
Task    |PPO      |PPO(10x) |Top-K MoE|LN       |Dense-MoE|DS-MoE   |SPHERE   |PW       |C-CHAIN  |CBP
stand   |0.74±0.20|0.88±0.12|0.84±0.22|0.85±0.05|0.87±0.05|0.77±0.17|0.95±0.05|0.68±0.15|0.90±0.08|0.83±0.13
walk    |0.62±0.12|0.76±0.39|0.46±0.41|1.00±0.00|0.57±0.40|0.73±0.13|0.75±0.13|0.83±0.15|0.53±0.41|0.50±0.41
pole    |0.60±0.09|0.66±0.14|0.58±0.20|0.75±0.15|0.60±0.40|0.67±0.13|0.83±0.13|0.73±0.12|0.87±0.05|0.63±0.45
slide   |0.00±0.00|0.00±0.00|0.00±0.00|0.00±0.00|0.00±0.00|0.00±0.00|0.33±0.17|0.23±0.19|0.00±0.00|0.00±0.00
run     |0.76±0.38|0.78±0.15|0.88±0.13|0.45±0.45|0.85±0.05|0.85±0.15|0.90±0.08|0.65±0.19|0.57±0.40|0.50±0.50
average |0.54±0.16|0.62±0.16|0.55±0.19|0.61±0.13|0.58±0.18|0.60±0.11|0.75±0.11|0.62±0.16|0.57±0.19|0.49±0.30
"""

_HUMANOIDBENCH_CRL = """
Task    |PPO      |PPO(10x) |Top-K MoE|LN       |Dense-MoE|DS-MoE   |SPHERE   |PW       |C-CHAIN  |CBP
stand   |0.74±0.20|0.88±0.12|0.84±0.22|0.82±0.08|0.90±0.00|0.77±0.17|0.85±0.18|0.70±0.16|0.90±0.08|0.83±0.13
walk    |0.78±0.13|0.74±0.22|0.92±0.08|1.00±0.00|0.90±0.00|0.83±0.09|0.98±0.04|0.83±0.09|0.73±0.19|0.90±0.00
pole    |0.26±0.26|0.42±0.29|0.06±0.08|0.71±0.17|0.05±0.05|0.33±0.34|0.38±0.18|0.40±0.22|0.23±0.26|0.53±0.41
slide   |0.00±0.00|0.00±0.00|0.00±0.00|0.00±0.00|0.00±0.00|0.00±0.00|0.03±0.04|0.07±0.09|0.00±0.00|0.00±0.00
run     |0.00±0.00|0.00±0.00|0.00±0.00|0.00±0.00|0.00±0.00|0.00±0.00|0.47±0.17|0.00±0.00|0.20±0.20|0.00±0.00
average |0.36±0.12|0.41±0.13|0.36±0.08|0.50±0.05|0.37±0.01|0.39±0.12|0.54±0.12|0.40±0.11|0.41±0.15|0.45±0.11
"""


def _number(text: str) -> Printed:
    return Printed(*(float(part) for part in text.split("±")))


def _by_method(text: str) -> dict[str, dict[str, Printed]]:
    """method -> task -> number, from a table with a column per method."""
    head, *rows = ([cell.strip() for cell in line.split("|")] for line in text.strip().splitlines())
    return {method: {row[0]: _number(row[column]) for row in rows} for column, method in enumerate(head) if column > 0}


def _by_row(text: str) -> dict[str, dict[str, Printed]]:
    """row -> column -> number; an empty cell is a number the paper does not give."""
    head, *rows = ([cell.strip() for cell in line.split("|")] for line in text.strip().splitlines())
    return {row[0]: {name: _number(cell) for name, cell in zip(head[1:], row[1:], strict=True) if cell} for row in rows}


SOURCES = {
    ("metaworld", "rl"): "tab:metaworld-per-task-full",
    ("metaworld", "crl"): "tab:metaworld-crl-per-task-full",
    ("humanoidbench", "rl"): "tab:humanoidbench-per-task-full-relu",
    ("humanoidbench", "crl"): "tab:humanoidbench-crl-per-task-full-relu",
}

SUCCESS: dict[tuple[str, str], dict[str, dict[str, Printed]]] = {
    ("metaworld", "rl"): _by_method(_METAWORLD_RL),
    ("metaworld", "crl"): _by_method(_METAWORLD_CRL),
    ("humanoidbench", "rl"): _by_method(_HUMANOIDBENCH_RL),
    ("humanoidbench", "crl"): _by_method(_HUMANOIDBENCH_CRL),
}
"""(suite, protocol) -> method -> task -> success right after the task's own training."""

_TABLES = {
    "tab:robust-10seed-stats": """
Setting                          | mean      | IQM  | IQR
HumanoidBench CRL, Top-K MoE     | 0.36±0.05 | 0.36 | 0.05
HumanoidBench CRL, SPHERE        | 0.53±0.07 | 0.52 | 0.11
MetaWorld CRL, Top-K MoE         | 0.16±0.08 | 0.14 | 0.14
MetaWorld CRL, SPHERE            | 0.41±0.07 | 0.41 | 0.07
""",
    "tab:humanoidbench-sphere-ablation": """
Variant                          | success
w/o SPHERE                       | 0.36±0.08
w/ SPHERE                        | 0.54±0.12
All hidden expert layers         | 0.42±0.07
Per-expert loss sum              | 0.40±0.08
G_last Regularization            | 0.43±0.09
""",
    "tab:sphere-design-ablations-extra": """
Variant                          | success
w/o SPHERE                       | 0.36±0.08
w/ SPHERE                        | 0.54±0.12
Fixed alpha=1                    | 0.27±0.09
Fixed alpha=2                    | 0.40±0.18
Fixed alpha=5                    | 0.41±0.09
Unweighted feature Gram          | 0.50±0.03
Joint feature Gram across layers | 0.47±0.12
Gate-only regularization         | 0.43±0.08
Layer-mixture entropy term       | 0.41±0.03
On A_last and G_last             | 0.77±0.23
On A_last kron G_last            | 0.66±0.20
On A_last * G_last               | 0.50±0.25
""",
    "tab:humanoidbench-mlp-sphere": """
Backbone                         | w/o SPHERE | w/ SPHERE
PPO                              | 0.36±0.12  | 0.43±0.09
PPO(10x)                         | 0.41±0.13  | 0.50±0.15
""",
    "tab:loadbalance-success-rek": """
Method                           | success   | r_e(K)
Top-K MoE                        | 0.36±0.08 | 12.49
+ Load balancing                 | 0.45±0.23 | 21.24
""",
    "tab:spectral-plasticity-baselines": """
Method                           | success
Top-K MoE                        | 0.36±0.08
Spectral Normalization           | 0.41±0.08
ReDo                             | 0.41±0.04
Spectral Regularization          | 0.48±0.06
SPHERE                           | 0.54±0.12
""",
    "tab:expert-choice-routing": """
Method                           | success
Expert-choice routing            | 0.38±0.03
Expert-choice routing + SPHERE   | 0.44±0.05
""",
    "tab:plasticity-diagnostics": """
Diagnostic                       | Top-K MoE | SPHERE
Dormant ratio                    | 0.010     | 0.005
Feature L2 norm                  | 269.60    | 269.80
Gradient L2 norm                 | 312.70    | 255.40
""",
    "tab:expert-count-sweep": """
Number of experts                | Top-K MoE | SPHERE
4                                | 0.32±0.07 | 0.45±0.08
10                               | 0.36±0.05 | 0.53±0.07
16                               | 0.40±0.09 | 0.59±0.10
""",
    "tab:actor-critic-placement": """
PPO placement                    | success
Actor only                       | 0.54±0.12
Critic only                      | 0.41±0.06
Actor and critic                 | 0.57±0.07
""",
    "tab:ln-interaction": """
Setting                          | SPHERE only | SPHERE with LN
HumanoidBench CRL with PPO       | 0.54±0.12   | 0.54±0.03
MetaWorld CRL with TD3           | 0.55±0.06   | 0.65±0.09
""",
    "tab:stationary-longer-horizon": """
Setting                          | Baseline  | SPHERE
Stationary TD3+BC control        | 0.46±0.09 | 0.55±0.06
Longer-horizon MetaWorld RL      | 0.09±0.03 | 0.21±0.04
""",
    "tab:humanoidbench-crl5-avg-success": """
Method                           | final success
Top-K MoE                        | 0.03±0.04
SPHERE                           | 0.25±0.05
""",
    "tab:humanoidbench-robustness": """
Activation                       | Top-K MoE | SPHERE
ReLU                             | 0.36±0.08 | 0.54±0.12
Tanh                             | 0.36±0.10 | 0.58±0.17
""",
    "tab:humanoidbench-structure-agnostic": """
MoE variant                      | w/o SPHERE | w/ SPHERE
Dense-MoE                        | 0.37±0.01  | 0.55±0.12
DS-MoE                           | 0.39±0.12  | 0.51±0.08
SoftMoE                          | 0.55±0.09  | 0.60±0.05
""",
    "tab:negative-intervention-success": """
Setting                          | success
Top-K MoE, rho=0                 | 0.36±0.08
SPHERE, rho=1e-3                 | 0.54±0.12
Negative-SPHERE, rho=-1e-3       | 0.20±0.09
""",
    "tab:metaworld-td3-ablation": """
Method                           | success
Top-K MoE critic (TD3)           | 0.50±0.08
Regularized MoE critic (TD3)     | 0.65±0.09
""",
    "tab:humanoidbench-specialization": """
Method    | overlap   | orthogonality | silhouette | knn_jaccard | max_violation | active_ratio | routing_entropy
Top-K MoE | 0.34±0.01 | 0.66±0.01     | 0.02±0.15  | 0.82±0.11   | 2.73±0.85     | 0.67±0.21    | 0.66±0.11
SPHERE    | 0.13±0.01 | 0.87±0.01     | 0.15±0.06  | 0.96±0.02   | 2.70±0.75     | 0.69±0.10    | 0.66±0.08
""",
    "tab:humanoidbench-runtime": """
Hours per task                   | E=10 | E=20 | E=40 | E=80 | E=160 | E=1000
Top-K MoE                        | 2.23 | 2.23 | 2.24 | 2.05 | 2.33  | 4.37
SPHERE                           | 2.37 | 2.34 | 2.37 | 2.11 | 2.45  | 4.61
""",
    "tab:visual-metaworld-resnet": """
Method                           | success
ResNet policy                    | 0.18±0.04
ResNet policy + SPHERE           | 0.32±0.07
""",
    "tab:splitcifar100-in-task-success": """
Method                           | success   | r_e(K)
Fine-tune                        | 0.29±0.01 | 6.55
SPHERE                           | 0.48±0.01 | 10.03
""",
    "tab:splitcifar100-in-task-success-vit": """
Method                           | success   | r_e(K)
Fine-tune                        | 0.38±0.03 | 4.54
SPHERE                           | 0.52±0.03 | 7.46
""",
    "tab:20news-in-task-success": """
Method                           | success   | r_e(K)
Fine-tune                        | 0.17±0.02 | 2.71
SPHERE                           | 0.27±0.01 | 14.55
""",
}

TABLES = {label: _by_row(text) for label, text in _TABLES.items()}
"""Label of a table -> row -> column -> number."""

QUOTED = {
    "metaworld-crl, rho 1e-3": Printed(0.369, 0.130),
    "Pearson r_e(A_last), r_e(K)": Printed(0.846),
    "Pearson Kronecker proxy, Khatri-Rao": Printed(0.861),
    "Pearson log q_KFAC, log q_GN": Printed(0.980),
    "lead-lag: best lag": Printed(10),
    "lead-lag: Pearson at the best lag": Printed(0.52),
    "one-step regression: standardised coefficient": Printed(0.12),
    "one-step regression: p(beta <= 0)": Printed(0.007),
}
"""Numbers that stand in the text alone."""

SCORE = "success"
SUITES = {"metaworld": "MetaWorld", "humanoidbench": "HumanoidBench"}
PROPOSED, BASELINES = "SPHERE", ("Top-K MoE", "PPO")
ORDER = (
    *("PPO", "PPO(10x)", "Top-K MoE", "Dense-MoE", "DS-MoE", "SoftMoE", "Expert-choice routing", "LN", "PW"),
    *("C-CHAIN", "CBP", "ReDo", "Spectral Normalization", "Spectral Regularization", "Load balancing", "SPHERE"),
)
"""Methods in the order of its tables."""

OTHERS = {
    "Spectral Normalization": ("tab:spectral-plasticity-baselines", "Spectral Normalization", "success"),
    "ReDo": ("tab:spectral-plasticity-baselines", "ReDo", "success"),
    "Spectral Regularization": ("tab:spectral-plasticity-baselines", "Spectral Regularization", "success"),
    "Load balancing": ("tab:loadbalance-success-rek", "+ Load balancing", "success"),
    "Expert-choice routing": ("tab:expert-choice-routing", "Expert-choice routing", "success"),
    "Expert-choice routing + SPHERE": ("tab:expert-choice-routing", "Expert-choice routing + SPHERE", "success"),
    "SoftMoE": ("tab:humanoidbench-structure-agnostic", "SoftMoE", "w/o SPHERE"),
    "SoftMoE + SPHERE": ("tab:humanoidbench-structure-agnostic", "SoftMoE", "w/ SPHERE"),
    "Dense-MoE + SPHERE": ("tab:humanoidbench-structure-agnostic", "Dense-MoE", "w/ SPHERE"),
    "DS-MoE + SPHERE": ("tab:humanoidbench-structure-agnostic", "DS-MoE", "w/ SPHERE"),
    "PPO + SPHERE": ("tab:humanoidbench-mlp-sphere", "PPO", "w/ SPHERE"),
    "PPO(10x) + SPHERE": ("tab:humanoidbench-mlp-sphere", "PPO(10x)", "w/ SPHERE"),
    "SPHERE + LN": ("tab:ln-interaction", "HumanoidBench CRL with PPO", "SPHERE with LN"),
    "Top-K MoE + negative SPHERE": ("tab:negative-intervention-success", "Negative-SPHERE, rho=-1e-3", "success"),
}
"""Methods whose average on HumanoidBench under CRL stands in a table of its own."""


def tasks(suite: str) -> list[str]:
    """Those of its tables (without their suite), in their order; none for a suite that it does not have."""
    return [task for task in SUCCESS.get((suite, "crl"), {}).get("SPHERE", {}) if task != "average"]


def success(suite: str, protocol: str, method: str, task: str = "average") -> Printed | None:
    """The paper's number for a task (without its suite) or the average; None where it has none."""
    found = SUCCESS.get((suite, protocol), {}).get(method, {}).get(task)
    if found is None and (suite, protocol, task) == ("humanoidbench", "crl", "average") and method in OTHERS:
        label, row, column = OTHERS[method]
        return TABLES[label][row][column]
    return found
