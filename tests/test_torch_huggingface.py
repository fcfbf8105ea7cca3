"""capture: Hugging Face mixtures with tiny random weights; nothing is downloaded."""

import os
import warnings

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")
torch.set_num_threads(1)  # threads that wait for each other on a busy machine take forty times as long
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    transformers = pytest.importorskip("transformers", "5", reason="needs transformers 5")

import sphere.torch as st
from sphere.torch import coefficient as strengths

transformers.logging.set_verbosity_error()

COMMON = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "num_experts_per_tok": 2,
}
LATENT = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "moe_intermediate_size": 12,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
MODELS = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {"moe_intermediate_size": 12, "shared_expert_intermediate_size": 12, "num_experts": 4},
    "Qwen3Moe": {"moe_intermediate_size": 12, "head_dim": 8, "num_experts": 4},
    "Olmoe": {"num_experts": 4},
    "DeepseekV2": {**LATENT, "n_group": 1, "topk_group": 1},
    "DeepseekV3": {**LATENT, "n_group": 2, "topk_group": 1},
    "GptOss": {"num_local_experts": 4, "head_dim": 8},
}


def make(name, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**COMMON | MODELS[name])
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


def batch(device="cpu"):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 50, (2, 9), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def banks(model):
    return {name: block for name, block in model.named_modules() if name.endswith("mlp.experts")}


@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_unchanged_and_features_are_what_the_down_projection_gets(name, implementation, device):
    model, inputs = make(name).to(device), batch(device)
    model.set_experts_implementation(implementation)
    plain = model(**inputs).logits
    outputs = {}
    captured = st.capture(model)
    for key, block in banks(model).items():
        block.register_forward_hook(lambda block, _, output, key=key: outputs.update({key: output}))
    assert torch.equal(model(**inputs).logits, plain)
    assert captured.mixtures.keys() == outputs.keys() == banks(model).keys()
    real = inputs["attention_mask"].reshape(-1).bool()
    for key, block in banks(model).items():
        features, experts, number = captured.mixtures[key]
        assert (number, features.shape[:2], experts.shape) == (4, (14, 2), (14, 2))
        down = block.down_proj if block.is_transposed else block.down_proj.mT
        want = outputs[key][real]
        got = torch.einsum("nkw,nkwo->no", features, down[experts])
        if not block.has_bias:  # which would need the gate weights alone
            np.testing.assert_allclose(got.detach().cpu(), want.detach().cpu(), rtol=1e-4, atol=1e-6)
    captured.remove()
    assert set(model.get_experts_implementation().values()) == {implementation}
    assert torch.equal(model(**inputs).logits, plain)


@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("name", ["Mixtral", "DeepseekV3"])
def test_gradients_of_the_penalty_are_those_of_features_computed_by_hand(name, implementation, device):
    model, inputs = make(name).to(device), batch(device)
    model.set_experts_implementation(implementation)
    captured, terms = st.capture(model), []
    real = inputs["attention_mask"].reshape(-1).bool()

    def by_hand(block, arguments):
        hidden, chosen, weights = (argument[real] for argument in arguments)
        gate, up = torch.einsum("nd,nkwd->nkw", hidden, block.gate_up_proj[chosen]).chunk(2, dim=-1)
        features = weights[:, :, None] * block.act_fn(gate) * up
        phi = features.new_zeros(len(features), 4, features.shape[2])
        phi = phi.scatter_add(1, chosen[:, :, None].expand_as(features), features)
        terms.append(st.sphere_penalty(phi.reshape(len(phi), -1)))

    for block in banks(model).values():
        block.register_forward_pre_hook(by_hand)
    model(**inputs)
    params = list(model.parameters())
    want = torch.autograd.grad(sum(terms), params, retain_graph=True, allow_unused=True)
    got = torch.autograd.grad(captured.penalty(), params, allow_unused=True)
    assert captured.penalty().item() == pytest.approx(sum(terms).item(), rel=1e-5)
    assert [g is None for g in got] == [g is None for g in want]
    largest = max(float(g.abs().max()) for g in want if g is not None)
    for left, right in zip(got, want, strict=True):
        if left is not None:
            np.testing.assert_allclose(left.cpu(), right.cpu(), rtol=1e-4, atol=1e-5 * largest)


def losses(model, captured, inputs):
    loss = model(**inputs, labels=inputs["input_ids"]).loss
    return loss, captured.penalty()


def checkpoint(model, **settings):
    """Under the name that this version has for it."""
    for name in ("activation", "gradient"):
        if hasattr(model, f"{name}_checkpointing_enable"):
            getattr(model, f"{name}_checkpointing_enable")(**{f"{name}_checkpointing_kwargs": settings})
            return


def test_gradient_checkpointing_gives_the_same_gradients():
    gradients = []
    for checkpointing in (False, True):
        model, inputs = make("Mixtral", torch.float64), batch()
        model.train()
        model.set_experts_implementation("batched_mm")  # grouped_mm knows no float64
        if checkpointing:
            checkpoint(model, use_reentrant=False)
        captured = st.capture(model)
        params = list(model.parameters())
        result = st.penalised_backward(*losses(model, captured, inputs), params, 0.1, floor=1e-12)
        assert len(captured.mixtures) == 2
        gradients.append((params, float(result.coefficient)))
    assert gradients[0][1] == pytest.approx(gradients[1][1], rel=1e-10)
    for left, right in zip(gradients[0][0], gradients[1][0], strict=True):
        np.testing.assert_allclose(left.grad, right.grad, rtol=1e-9, atol=1e-14)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own about inputs without gradients
def test_reentrant_checkpointing_is_refused():
    model, inputs = make("Mixtral"), batch()
    model.train()
    checkpoint(model, use_reentrant=True)
    captured = st.capture(model)
    with pytest.raises(ValueError, match=r"penalty has no gradient; .*reentrant gradient checkpointing"):
        st.penalised_backward(*losses(model, captured, inputs), model.parameters(), 0.1)
    assert all(p.grad is None for p in model.parameters())


def test_on_a_fresh_transformer_the_released_floor_mutes_the_penalty(monkeypatch):
    monkeypatch.setattr(strengths, "_warned", False)
    model, inputs = make("Mixtral"), batch()
    captured = st.capture(model)
    with pytest.warns(UserWarning, match="rho is 0.1 and the penalty is felt as"):
        released = st.penalised_backward(*losses(model, captured, inputs), model.parameters(), 0.1)
    relative = st.penalised_backward(*losses(model, captured, inputs), model.parameters(), 0.1, floor=1e-12)
    assert float(released.felt) < 0.01
    assert float(relative.felt) == pytest.approx(0.1, rel=1e-3)


def test_a_floor_that_is_relative_may_still_be_too_high(monkeypatch):
    """docs/pytorch.md says so."""
    monkeypatch.setattr(strengths, "_warned", False)
    model, inputs = make("Olmoe"), batch()
    captured = st.capture(model)
    with pytest.warns(UserWarning, match="floor=1e-08 of the task's is reached"):
        result = st.penalised_backward(*losses(model, captured, inputs), model.parameters(), 0.1, floor=1e-8)
    assert 0.04 < float(result.felt) < 0.06


def test_every_layer_may_have_a_coefficient_of_its_own():
    model, inputs = make("Olmoe"), batch()
    captured = st.capture(model)
    loss = model(**inputs, labels=inputs["input_ids"]).loss
    result = st.penalised_backward(loss, captured.penalties(), model.parameters(), 0.1, floor=1e-12)
    assert len(result.coefficient) == 2
    np.testing.assert_allclose(torch.stack(result.felt), 0.1, rtol=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_the_penalty_raises_the_rank_of_expert_features(name):
    """A direction, not a claim: rho 0.1 against 0, mean over three seeds, on tokens that were not trained on."""
    inputs = batch()
    tokens = torch.randint(0, 50, (8, 16), generator=torch.Generator().manual_seed(99))

    def rank(rho, seed):
        model = make(name, seed=seed)
        captured, params = st.capture(model), list(model.parameters())
        optimiser = torch.optim.Adam(params, lr=3e-3)
        for _ in range(15):
            optimiser.zero_grad()
            st.penalised_backward(*losses(model, captured, inputs), params, rho, floor=1e-12)
            optimiser.step()
        with torch.no_grad():
            model(input_ids=tokens)
        return np.mean([st.routing_health(*mixture).feature_rank for mixture in captured.mixtures.values()])

    assert np.mean([rank(0.1, seed) for seed in range(3)]) > np.mean([rank(0.0, seed) for seed in range(3)])


def test_a_model_can_be_captured_once_and_saved(tmp_path):
    model, inputs = make("Mixtral"), batch()
    with st.capture(model) as captured:
        with pytest.raises(ValueError, match="no forward pass has been captured"):
            captured.penalty()
        model(**inputs)
        with pytest.raises(ValueError, match="the model is captured already"):
            st.capture(model)
        before = {key: value.clone() for key, value in model.state_dict().items()}
    assert before.keys() == model.state_dict().keys()
    with st.capture(model):
        model(**inputs)


def test_models_without_a_mixture_are_told_so():
    with pytest.raises(ValueError, match="Linear has no mixture that can be captured; wanted a transformers 5 model"):
        st.capture(torch.nn.Linear(2, 2))
    old = torch.nn.ModuleDict({"experts": torch.nn.ModuleList([torch.nn.Linear(2, 2)])})
    with pytest.raises(ValueError, match=r"its experts is of another kind \(transformers 4\?\)"):
        st.capture(old)
    model = make("Mixtral")
    model.config._experts_implementation_internal = "deepgemm"
    with pytest.raises(ValueError, match="the experts run by 'deepgemm', whose inner results cannot be seen"):
        st.capture(model)
    with pytest.raises(ValueError, match="DataParallel wraps a model"):
        st.capture(torch.nn.DataParallel(make("Mixtral")))
