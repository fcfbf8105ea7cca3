"""A mixin that adds the SPHERE penalty to Hugging Face's Trainer. Run: python examples/torch/trainer_mixin.py"""

import tempfile

import torch
from transformers import MixtralConfig, MixtralForCausalLM, Trainer, TrainingArguments

from sphere.torch import attach, capture, routing_health


class SphereMixin:
    """`class MyTrainer(SphereMixin, Trainer)`, then `MyTrainer(..., rho=0.1)`; the model is a transformers 5 mixture.
    Gradient accumulation and gradient checkpointing work as before; fp16 with loss scaling and several processes do
    not."""

    def __init__(self, *args, rho=0.1, floor=1e-12, **kwargs):
        super().__init__(*args, **kwargs)
        if self.args.fp16 or self.args.world_size > 1:
            raise ValueError("fp16 or several processes: call sphere.torch.penalised_backward in your own loop")
        self.captured = capture(self.model)
        self.attached = attach(self.model.parameters(), rho, floor=floor)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if model.training:
            loss = self.attached(loss, self.captured.penalty())
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        if self.captured.mixtures:
            layers = [routing_health(*mixture).numbers() for mixture in self.captured.mixtures.values()]
            logs = logs | {f"sphere/{name}": sum(layer[name] for layer in layers) / len(layers) for name in layers[0]}
            logs |= {"sphere/penalty": self.attached.penalty, "sphere/felt_ratio": self.attached.felt}
        super().log(logs, *args, **kwargs)


class SphereTrainer(SphereMixin, Trainer):
    pass


def main(rho=0.1, steps=20, seed=0, **settings):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    heads = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    model = MixtralForCausalLM(MixtralConfig(vocab_size=64, **sizes, **heads))
    data = [{"input_ids": (torch.arange(16) * i) % 64, "labels": (torch.arange(16) * i) % 64} for i in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        settings = {"max_steps": steps, "seed": seed, "logging_steps": 5, "report_to": [], "use_cpu": True, **settings}
        arguments = TrainingArguments(folder, save_strategy="no", disable_tqdm=True, learning_rate=3e-3, **settings)
        trainer = SphereTrainer(model, arguments, train_dataset=data, rho=rho)
        trainer.train()
    return trainer


if __name__ == "__main__":
    main()
