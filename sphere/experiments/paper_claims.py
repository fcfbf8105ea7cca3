"""What the paper claims, experiment by experiment, with its own numbers."""

from collections.abc import Mapping, Sequence

from sphere.experiments.arms import ARCHITECTURES, OF_SUITE, PAIR
from sphere.experiments.claim import Claim, Side, claim
from sphere.experiments.rho import NEGATIVE, SWEEP
from sphere.experiments.runtime import EXPERTS
from sphere.experiments.streams import TEXT, VIT
from sphere.report import paper
from sphere.report.paper import TABLES, Printed

SUITES = {"humanoidbench": "HumanoidBench", "metaworld": "MetaWorld"}


def rows(source: str, first: str, others: Sequence[str], column: str = "success") -> tuple[Claim, ...]:
    """One row of the paper's table against some others."""
    table = TABLES[source]
    return tuple(claim(Side(first), Side(one), (table[first][column], table[one][column])) for one in others)


def columns(
    source: str, label: str, only: Sequence[str] = (), named: Mapping[str, str] | None = None
) -> tuple[Claim, ...]:
    """In every row of the paper's table (or of some) the second column against the first; `label` makes an arm's."""
    found = []
    for row, cells in TABLES[source].items():
        if only and row not in only:
            continue
        without, with_it = list(cells)
        arms = [(named or {}).get(name, label.format(row=row, column=name)) for name in (with_it, without)]
        found.append(claim(Side(arms[0]), Side(arms[1]), (cells[with_it], cells[without])))
    return tuple(found)


def of_suite(suite: str, protocol: str) -> tuple[Claim, ...]:
    """SPHERE against every other method, Top-K first."""
    others = ["Top-K MoE", *(name for name in OF_SUITE[suite] if name not in ("SPHERE", "Top-K MoE"))]
    table = paper.SUCCESS[suite, protocol]
    return tuple(
        claim(
            Side("SPHERE", protocol, suite),
            Side(other, protocol, suite),
            (table["SPHERE"]["average"], table[other]["average"]),
            text=f"SPHERE {_relation(table, other)} {other} under {protocol.upper()}",
        )
        for other in others
    )


def _relation(table: Mapping[str, Mapping[str, Printed]], other: str) -> str:
    return "above" if table["SPHERE"]["average"].mean > table[other]["average"].mean else "below"


def bars(suite: str) -> tuple[Claim, ...]:
    """The captions of the paper's two figures of all methods; other methods are judged on the pages by task."""
    gap = tuple(Side(name, protocol, suite) for name in PAIR for protocol in ("rl", "crl"))
    printed = tuple(paper.SUCCESS[suite, side.protocol][side.label]["average"] for side in gap)
    closed = Claim("SPHERE closes a part of the gap between RL and CRL", gap, printed)
    return (of_suite(suite, "crl")[0], of_suite(suite, "rl")[0], closed)


def architectures(suite: str) -> tuple[Claim, ...]:
    """Success under CRL is below that under RL."""
    found = []
    for name in ARCHITECTURES:
        both = [paper.success(suite, protocol, name) for protocol in ("crl", "rl")]
        printed = (both[0], both[1]) if both[0] and both[1] else None
        sides = Side(name, "crl", suite), Side(name, "rl", suite)
        found.append(claim(*sides, printed, below=True, text=f"{name}: CRL below RL"))
    return tuple(found)


PLACES = {"heldout": "held-out states", "online": "rollout states"}


def ranks(labels: Sequence[str], *places: str) -> tuple[Claim, ...]:
    """SPHERE keeps r_e(K) above that of the baselines, over training and at its end, and theirs falls."""
    found = []
    for place in places:
        name = f"{place}/ntk_rank"
        where = PLACES[place]
        for label in labels:
            for when, words in (("mean", "stays"), ("last", "ends")):
                both = Side("SPHERE", number=f"{when} {name}"), Side(label, number=f"{when} {name}")
                found.append(claim(*both, text=f"r_e(K) of SPHERE {words} above that of {label}, {where}"))
        for label in labels:
            times = Side(label, number=f"last {name}"), Side(label, number=f"first {name}")
            found.append(claim(*times, below=True, text=f"r_e(K) of {label} ends below where it began, {where}"))
    return tuple(found)


def metric(label: str, other: str, number: str, text: str, printed: tuple[Printed, Printed]) -> Claim:
    return claim(Side(label, number=number), Side(other, number=number), printed, text=text)


def stream(source: str, *forms: str) -> tuple[Claim, ...]:
    """Of the preset's network and of other `forms` of it, as their arms are called."""
    table, found = TABLES[source], []
    for of in ["", *(f", {form}" for form in forms)]:
        first, second = Side(f"SPHERE{of}"), Side(f"Fine-tune{of}")
        scores = table["SPHERE"]["success"], table["Fine-tune"]["success"]
        found.append(claim(first, second, scores, text=f"SPHERE above Fine-tune{of}"))
        ranks = table["SPHERE"]["r_e(K)"], table["Fine-tune"]["r_e(K)"]
        text = f"r_e(K) of SPHERE ends above that of Fine-tune{of}"
        found.append(metric(first.label, second.label, "last heldout/ntk_rank", text, ranks))
    return tuple(found)


def ten_seeds() -> tuple[Claim, ...]:
    table = TABLES["tab:robust-10seed-stats"]
    return tuple(
        claim(
            Side("SPHERE", suite=suite),
            Side("Top-K MoE", suite=suite),
            (table[f"{name} CRL, SPHERE"]["mean"], table[f"{name} CRL, Top-K MoE"]["mean"]),
            text=f"SPHERE above Top-K MoE, {name}",
        )
        for suite, name in SUITES.items()
    )


def sweep() -> tuple[Claim, ...]:
    ablation = TABLES["tab:humanoidbench-sphere-ablation"]
    printed = ablation["w/ SPHERE"]["success"], ablation["w/o SPHERE"]["success"]
    suite = "humanoidbench"
    best, *others = ["rho=0.001", *(name for name in SWEEP if name not in ("rho=0", "rho=0.001"))]
    nothing = Side("rho=0", suite=suite)
    return (
        claim(Side(best, suite=suite), nothing, printed),
        *(claim(Side(name, suite=suite), nothing) for name in others),
    )


def retention() -> tuple[Claim, ...]:
    table, number = TABLES["tab:humanoidbench-crl5-avg-success"], "final success"
    printed = table["SPHERE"][number], table["Top-K MoE"][number]
    return (metric("SPHERE", "Top-K MoE", number, "The final policy of SPHERE above that of Top-K MoE", printed),)


def load_balance() -> tuple[Claim, ...]:
    source, first, second = "tab:loadbalance-success-rek", "+ Load balancing", "Top-K MoE"
    table = TABLES[source]
    printed = table[first]["r_e(K)"], table[second]["r_e(K)"]
    text = f"r_e(K) of {first} ends above that of {second}"
    return (*rows(source, first, [second]), metric(first, second, "last heldout/ntk_rank", text, printed))


def diagnostics() -> tuple[Claim, ...]:
    table = TABLES["tab:plasticity-diagnostics"]
    names = {"Dormant ratio": "dormant_ratio", "Gradient L2 norm": "gradient_norm", "Feature L2 norm": "feature_norm"}
    words = ("below that", "below that", "as large as that")
    return tuple(
        metric(
            "SPHERE",
            "Top-K MoE",
            f"last heldout/{name}",
            f"{row} of SPHERE {word} of Top-K MoE",
            (table[row]["SPHERE"], table[row]["Top-K MoE"]),
        )
        for (row, name), word in zip(names.items(), words, strict=True)
    )


def specialisation() -> tuple[Claim, ...]:
    table = TABLES["tab:humanoidbench-specialization"]
    words = {"overlap": "below", "orthogonality": "above", "silhouette": "above", "knn_jaccard": "above"}
    return tuple(
        metric(
            "SPHERE",
            "Top-K MoE",
            f"last online/{name}",
            f"{name.replace('_', ' ').capitalize()} of SPHERE {word} that of Top-K MoE",
            (table["SPHERE"][name], table["Top-K MoE"][name]),
        )
        for name, word in words.items()
    )


def runtime() -> tuple[Claim, ...]:
    table = TABLES["tab:humanoidbench-runtime"]
    return tuple(
        metric(
            f"SPHERE, E={experts}",
            f"Top-K MoE, E={experts}",
            "hours",
            f"SPHERE takes a little longer with {experts} experts",
            (table["SPHERE"][f"E={experts}"], table["Top-K MoE"][f"E={experts}"]),
        )
        for experts in EXPERTS
    )


def flip() -> tuple[Claim, ...]:
    source, zero = "tab:negative-intervention-success", "Top-K MoE, rho=0"
    return (*rows(source, NEGATIVE.label, [zero]), *rows(source, "SPHERE, rho=1e-3", [zero]))


def td3_norm() -> tuple[Claim, ...]:
    cells = TABLES["tab:ln-interaction"]["MetaWorld CRL with TD3"]
    return (claim(Side("SPHERE + LN (TD3)"), Side("SPHERE (TD3)"), (cells["SPHERE with LN"], cells["SPHERE only"])),)


BC_BASELINE = "Top-K MoE critic (TD3+BC)"


def stationary() -> tuple[Claim, ...]:
    cells = TABLES[LONGER]["Stationary TD3+BC control"]
    first, second = Side("SPHERE (TD3+BC)", number="final success"), Side(BC_BASELINE, number="final success")
    return (claim(first, second, (cells["SPHERE"], cells["Baseline"])),)


LONGER = "tab:stationary-longer-horizon"
BASELINES = "tab:spectral-plasticity-baselines"
CLAIMS: dict[str, tuple[Claim, ...]] = {
    **{f"{suite}-{protocol}": of_suite(suite, protocol) for suite in SUITES for protocol in ("crl", "rl")},
    **{f"{suite}-bars": bars(suite) for suite in SUITES},
    **{f"{suite}-archs": architectures(suite) for suite in SUITES},
    "retention": retention(),
    "ten-seeds": ten_seeds(),
    "ntk-heldout": ranks(ARCHITECTURES, "heldout"),
    "ntk-online": ranks(["Top-K MoE"], "online"),
    "metaworld-ntk": ranks(["Top-K MoE", "PPO"], "heldout", "online"),
    "sphere-ablation": rows(
        "tab:humanoidbench-sphere-ablation",
        "w/ SPHERE",
        ["w/o SPHERE", "All hidden expert layers", "Per-expert loss sum", "G_last Regularization"],
    ),
    "design-ablations": rows(
        "tab:sphere-design-ablations-extra",
        "w/ SPHERE",
        [row for row in TABLES["tab:sphere-design-ablations-extra"] if row != "w/ SPHERE"],
    ),
    "placement": (
        *rows("tab:actor-critic-placement", "Actor only", ["Critic only"]),
        *rows("tab:actor-critic-placement", "Actor and critic", ["Actor only"]),
    ),
    "spectral-baselines": (
        *rows(BASELINES, "SPHERE", [row for row in TABLES[BASELINES] if row != "SPHERE"]),
        *(one for row in list(TABLES[BASELINES])[1:-1] for one in rows(BASELINES, row, ["Top-K MoE"])),
    ),
    "expert-choice": rows("tab:expert-choice-routing", "Expert-choice routing + SPHERE", ["Expert-choice routing"]),
    "structures": columns("tab:humanoidbench-structure-agnostic", "{row}, {column}"),
    "dense-backbones": columns("tab:humanoidbench-mlp-sphere", "{row}, {column}"),
    "activation": columns("tab:humanoidbench-robustness", "{column}, {row}"),
    "expert-count": columns("tab:expert-count-sweep", "{column}, E={row}"),
    "layernorm": columns("tab:ln-interaction", "{column}", ["HumanoidBench CRL with PPO"]),
    "rho-sweep": sweep(),
    "sign-flip": flip(),
    "load-balance": load_balance(),
    "plasticity-diagnostics": diagnostics(),
    "specialisation": specialisation(),
    "runtime": runtime(),
    "td3-critic": rows("tab:metaworld-td3-ablation", "Regularized MoE critic (TD3)", ["Top-K MoE critic (TD3)"]),
    "td3-layernorm": td3_norm(),
    "td3-bc": stationary(),
    "longer-chain": columns(LONGER, "{column}", ["Longer-horizon MetaWorld RL"], {"Baseline": "Top-K MoE"}),
    "pixels": rows("tab:visual-metaworld-resnet", "ResNet policy + SPHERE", ["ResNet policy"]),
    "cifar100-mlp": stream("tab:splitcifar100-in-task-success"),
    "cifar100-vit": stream("tab:splitcifar100-in-task-success-vit", *VIT.values()),
    "newsgroups": stream("tab:20news-in-task-success", *TEXT.values()),
}
"""By the name of the experiment, the main claim first. Those that look at networks (`tsne`, `kfac` and the like) have
none: records keep no networks."""
