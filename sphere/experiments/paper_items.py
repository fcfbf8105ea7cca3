"""Every figure and table of the paper, in its order, and the experiments that are made for it."""

from typing import NamedTuple

ITEMS = {
    "fig:teaser": "a drawing of the idea",
    "fig:humanoidbench-archs-rl-vs-crl-relu": "RL against CRL by architecture",
    "fig:humanoidbench-entk-erank-archs": "r_e(K) over training",
    "fig:metaworld-methods-success-bars": "all methods, MetaWorld",
    "fig:humanoidbench-methods-success-bars": "all methods, HumanoidBench",
    "fig:case-study": "t-SNE of features along the sequence",
    "tab:humanoidbench-sphere-ablation": "where the penalty acts",
    "fig:reA-reK-batchwise": "rank of features against r_e(K)",
    "tab:train-hyperparams": "settings of training",
    "tab:humanoidbench-mlp-sphere": "dense networks",
    "fig:loadbalance-vs-topk-entk": "load balancing, r_e(K)",
    "tab:loadbalance-success-rek": "load balancing",
    "tab:robust-10seed-stats": "ten seeds",
    "tab:spectral-plasticity-baselines": "spectral baselines",
    "tab:expert-choice-routing": "expert-choice routing",
    "tab:plasticity-diagnostics": "other diagnostics of plasticity",
    "tab:expert-count-sweep": "number of experts",
    "tab:actor-critic-placement": "actor or critic",
    "tab:ln-interaction": "with LayerNorm",
    "tab:stationary-longer-horizon": "TD3+BC; a longer chain",
    "tab:metaworld-per-task-full": "MetaWorld by task, RL",
    "tab:metaworld-crl-per-task-full": "MetaWorld by task, CRL",
    "tab:humanoidbench-per-task-full-relu": "HumanoidBench by task, RL",
    "tab:humanoidbench-crl-per-task-full-relu": "HumanoidBench by task, CRL",
    "tab:humanoidbench-crl5-avg-success": "success of the final policy",
    "fig:entk-onlinestates": "r_e(K) on rollout states",
    "tab:sphere-design-ablations-extra": "design of the penalty",
    "tab:humanoidbench-robustness": "activation",
    "tab:humanoidbench-structure-agnostic": "kinds of mixtures",
    "fig:humanoidbench-sphere-rho-sweep": "strength of the penalty",
    "tab:negative-intervention-success": "sign flip",
    "fig:negative-intervention-curves": "sign flip, over training",
    "fig:negative-intervention-leadlag": "does r_e(K) lead success",
    "tab:metaworld-td3-ablation": "TD3",
    "tab:humanoidbench-specialization": "specialisation of experts",
    "tab:humanoidbench-runtime": "hours per task",
    "fig:assumption-validation-gate-expert-ggncos": "coupling of gate and experts",
    "fig:kron-proxy-vs-khatri": "Kronecker proxy",
    "fig:kfac-scatter": "K-FAC curvature",
    "tab:visual-metaworld-resnet": "MetaWorld from images",
    "tab:splitcifar100-in-task-success": "SplitCIFAR-100, MLP",
    "tab:splitcifar100-in-task-success-vit": "SplitCIFAR-100, ViT",
    "tab:20news-in-task-success": "20 Newsgroups",
}
"""Label -> what it is about."""

WITHOUT = {
    "fig:teaser": "nothing to run",
    "tab:train-hyperparams": "the presets are these settings",
}
"""Items that no experiment is made for, and why."""


class Item(NamedTuple):
    label: str
    number: str
    """Figure 4, Table 12: counted in the order of the paper's source."""
    about: str


def items() -> list[Item]:
    found, count = [], {"fig": 0, "tab": 0}
    for label, about in ITEMS.items():
        kind = label.split(":", 1)[0]
        count[kind] += 1
        found.append(Item(label, f"{'Figure' if kind == 'fig' else 'Table'} {count[kind]}", about))
    return found


def labels(source: str) -> list[str]:
    """The items that an experiment's source names; none for one that carries a figure over to another suite."""
    return [] if ", for " in source else [label for label in source.split(" and ") if label in ITEMS]
