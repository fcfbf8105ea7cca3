"""Networks small enough for brute force, one per router, and a plain numpy statement of each."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sphere.nets import MLP, LayerNorm, Linear, MoE, NetConfig, Recorder, build
from sphere.nets.routers import ExpertChoice, TopK

KINDS = ("mlp", "top-k", "dense", "deepseek", "soft", "expert-choice")
MIXTURES = KINDS[1:]
OBS, ACT = 7, 3


def config(kind: str, **settings) -> NetConfig:
    small = {"width": 16, "depth": 2, "experts": 5, "top_k": 2, "tokens": 3, "token_size": 6, "group_size": 8}
    return NetConfig(kind=kind, **{**small, **settings})


def network(kind: str, seed: int = 0, **settings):
    """Random in every leaf, biases and LayerNorm included, so that each counts. Filled by numpy: nothing to compile."""
    shapes = eqx.filter_eval_shape(lambda key: build(config(kind, **settings), OBS, ACT, key=key), jax.random.key(0))
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        if "temperature" in name:
            return jnp.asarray(settings.get("temperature", 1.0), leaf.dtype)
        scale = leaf.shape[-2] ** -0.5 if "kernel" in name else 0.1
        return jnp.asarray(scale * rng.normal(size=leaf.shape) + ("scale" in name), leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes)


@eqx.filter_jit
def forward(net, x):
    return net(x)


def states(n: int = 20, seed: int = 1):
    return jax.random.normal(jax.random.key(seed), (n, OBS))


def jacobian_of(net, x):
    """Of the summed outputs, materialised: by parameter, with leading axis [n]."""
    params, static = eqx.partition(net, eqx.is_inexact_array)
    return jax.jit(jax.jacrev(lambda p: eqx.combine(p, static)(x)[0].sum(axis=1)))(params)


def flat(jacobian):
    """J [n, P], of all parameters or some."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(jacobian)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def flat_jacobian(net, x):
    return flat(jacobian_of(net, x))


def outer_product(jacobian):
    return flat(jacobian) @ flat(jacobian).T


# Plain numpy, one sample and one expert at a time, from the papers' formulas. -----------------------------------------


def np_softmax(v):
    e = np.exp(v - np.max(v))
    return e / e.sum()


def np_mlp(mlp, x, expert=None):
    """Output and last hidden features of one input vector; `expert` picks one of a bank."""

    def pick(leaf):
        leaf = np.asarray(leaf)
        return leaf if expert is None else leaf[expert]

    activation = {"relu": lambda v: np.maximum(v, 0), "tanh": np.tanh}[mlp.activation]
    for i, layer in enumerate(mlp.hidden):
        x = x @ pick(layer.kernel) + pick(layer.bias)
        if mlp.norms:
            norm = mlp.norms[i]
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-6) * pick(norm.scale) + pick(norm.bias)
        x = activation(x)
    return x @ pick(mlp.head.kernel) + pick(mlp.head.bias), x


def np_gate(kind, net, x):
    """Weight of every expert for every sample [n, E], from the definition of each router."""
    n, experts = len(x), net.num_experts
    router = net.router
    tau = float(router.temperature)
    gate = np.zeros((n, experts))
    if kind == "soft":
        return np.stack([np_soft(router, row)[1] for row in x])
    probability = np.stack([np_softmax(np_mlp(router.gate, row)[0] / tau) for row in x])
    if kind in ("top-k", "dense"):
        for i in range(n):
            logits = np_mlp(router.gate, x[i])[0] / tau
            best = sorted(range(experts), key=lambda e: -logits[e])[: router.top_k]
            gate[i, best] = np_softmax(logits[best])
    elif kind == "deepseek":
        gate[:, : router.shared] = 1
        for i in range(n):
            best = sorted(range(experts - router.shared), key=lambda e: -probability[i, e])[: router.top_k]
            gate[i, [router.shared + e for e in best]] = probability[i, best]
    elif kind == "expert-choice":
        for start in range(0, n, router.group_size):
            rows = range(start, min(start + router.group_size, n))
            take = int(np.ceil(router.capacity * len(rows) / experts))
            for e in range(experts):
                for i in sorted(rows, key=lambda i: -probability[i, e])[:take]:
                    gate[i, e] = probability[i, e]
    return gate


def np_soft(router, row):
    """Inputs of the experts [E, d] and their weights [E] for one state."""
    flat = row @ np.asarray(router.tokenise.kernel) + np.asarray(router.tokenise.bias)
    tokens = flat.reshape(router.tokens, -1)
    logits = tokens @ np.asarray(router.slots.kernel) / float(router.temperature)
    dispatch = np.stack([np_softmax(logits[:, e]) for e in range(logits.shape[1])], axis=1)
    combine = np.stack([np_softmax(logits[t]) for t in range(router.tokens)])
    return dispatch.T @ tokens, combine.mean(axis=0)


def np_forward(kind, net, x):
    """Outputs [n, out] and gate-weighted last features Phi [n, E, width]."""
    x = np.asarray(x)
    if kind == "mlp":
        pairs = [np_mlp(net, row) for row in x]
        return np.stack([p[0] for p in pairs]), np.stack([p[1] for p in pairs])[:, None]
    gate = np_gate(kind, net, x)
    outputs, phi = [], []
    for i, row in enumerate(x):
        inputs = np_soft(net.router, row)[0] if kind == "soft" else [row] * net.num_experts
        pairs = [np_mlp(net.experts, inputs[e], e) for e in range(net.num_experts)]
        outputs.append(sum(gate[i, e] * pairs[e][0] for e in range(net.num_experts)))
        phi.append(np.stack([gate[i, e] * pairs[e][1] for e in range(net.num_experts)]))
    return np.stack(outputs), np.stack(phi)


# A network of tokens --------------------------------------------------------------------------------------------------

TOKENS, SIZE, WIDTH, OUT, EXPERTS = 3, 4, 6, 2, 4


class TokenNet(eqx.Module):
    """What a Transformer is without attention: shared layers on every token, two mixtures with residuals, a mean, a
    head."""

    embed: Linear
    norms: tuple[LayerNorm, ...]
    mixtures: tuple[MoE | MLP, ...]
    head: Linear

    @property
    def input_shape(self):
        return (TOKENS, SIZE)

    def __call__(self, x, taps=None):
        recorder = Recorder(taps)
        by_token = recorder.tokens(TOKENS)
        shared = by_token.part("shared")
        h = x.reshape(-1, SIZE)
        h = jnp.tanh(shared("linear", h, self.embed(h), True))
        for norm, mixture in zip(self.norms, self.mixtures, strict=True):
            normal = norm.normalise(h)
            h = h + mixture.mix(shared("scale", normal, norm.affine(normal), True), by_token)
        pooled = jnp.mean(h.reshape(-1, TOKENS, h.shape[-1]), axis=1)
        output = recorder.part("shared")("linear", pooled, self.head(pooled), True)
        return output, recorder.finish()


def token_net(compute="dense", router="top-k", seed=0, outer=OUT):
    def mixture(key):
        one, two = jax.random.split(key)
        gate = MLP(WIDTH, EXPERTS, 5, 1, key=one)
        chooser = TopK(gate, 2) if router == "top-k" else ExpertChoice(gate, 2.0, group_size=TOKENS)
        return MoE(chooser, EXPERTS, WIDTH, WIDTH, 7, 2, layer_norm=True, compute=compute, key=two)

    keys = jax.random.split(jax.random.key(seed), 4)
    mixtures = (mixture(keys[1]), mixture(keys[2]))
    net = TokenNet(
        Linear(SIZE, WIDTH, key=keys[0]),
        (LayerNorm(WIDTH), LayerNorm(WIDTH)),
        mixtures,
        Linear(WIDTH, outer, key=keys[3]),
    )
    rng = np.random.default_rng(seed)

    def fill(path, leaf):  # biases and affine parts too, so that each counts
        name = jax.tree_util.keystr(path)
        return leaf if "temperature" in name else jnp.asarray(leaf + 0.2 * rng.normal(size=leaf.shape))

    return jax.tree_util.tree_map_with_path(fill, net)


def token_inputs(n=5, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, TOKENS, SIZE)))


def np_rows(net, x):
    """For each mixture, what enters it, its gate and its weighted last features, token by token; and the outputs."""
    found = []
    rows = np.tanh(np.asarray(x).reshape(-1, SIZE) @ np.asarray(net.embed.kernel) + np.asarray(net.embed.bias))
    for norm, moe in zip(net.norms, net.mixtures, strict=True):
        centred = rows - rows.mean(axis=1, keepdims=True)
        normal = centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + 1e-6)
        entered = normal * np.asarray(norm.scale) + np.asarray(norm.bias)
        gate = np_gate("top-k", moe, entered)
        pairs = [[np_mlp(moe.experts, row, e) for e in range(EXPERTS)] for row in entered]
        outputs, features = (np.array([[pair[i] for pair in one] for one in pairs]) for i in range(2))
        found.append((entered, gate, (gate[:, :, None] * features).reshape(len(rows), -1)))
        rows = rows + np.einsum("ne,neo->no", gate, outputs)
    pooled = rows.reshape(-1, TOKENS, WIDTH).mean(axis=1)
    return found, pooled @ np.asarray(net.head.kernel) + np.asarray(net.head.bias)


def np_rank(values):
    p = values[values > 1e-15 * values.max()] / values.sum()
    return np.exp(-np.sum(p * np.log(p)))


def np_entropy(weights):
    p = np.asarray(weights) / np.sum(weights)
    return -sum(q * np.log(q) for q in p if q > 0) / np.log(len(p)) if len(p) > 1 else 0.0


def np_pairs(features, chosen):
    """Overlap and orthogonality."""
    cosines = []
    for i in range(len(chosen)):
        for e, f in itertools.combinations(np.flatnonzero(chosen[i]), 2):
            a, b = features[i][e], features[i][f]
            both = np.linalg.norm(a) * np.linalg.norm(b)
            cosines.append(a @ b / both if both > 0 else 0.0)
    return (np.mean(cosines), np.mean([1 - abs(c) for c in cosines])) if cosines else (np.nan, np.nan)


def np_jaccard(embedding, chosen, k):
    from sklearn.neighbors import NearestNeighbors

    order = NearestNeighbors(n_neighbors=k).fit(embedding).kneighbors(return_distance=False)  # without a point itself
    sets = [set(np.flatnonzero(row)) for row in chosen]
    pairs = [(sets[i], sets[j]) for i in range(len(sets)) for j in order[i]]
    return np.mean([len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs])
