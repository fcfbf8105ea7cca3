"""A Lightning callback that adds the SPHERE penalty to any LightningModule with a mixture.
Run: python examples/torch/lightning_callback.py"""

import lightning
import torch

from sphere.torch import TopK, attach, routing_health


class SphereCallback(lightning.Callback):
    """`find(module)` gives the mixture of a LightningModule: a module that leaves `mixture` behind, as TopK does."""

    def __init__(self, rho=0.1, floor=None, find=lambda module: module.mixture):
        self.rho, self.floor, self.find = rho, floor, find

    def on_fit_start(self, trainer, module):
        if trainer.world_size > 1:
            raise ValueError("several processes: call sphere.torch.penalised_backward(..., ddp=model) yourself")
        self.net = self.find(module)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.attached = attach(self.net, self.rho, floor=self.floor, scaler=scaler)

    def on_train_batch_end(self, trainer, module, *_):
        numbers = routing_health(*self.net.mixture).numbers("sphere/")
        module.log_dict(numbers | {"sphere/penalty": self.attached.penalty, "sphere/felt_ratio": self.attached.felt})

    def on_fit_end(self, trainer, module):
        self.attached.remove()


class Regression(lightning.LightningModule):
    """Written by somebody who has never heard of the penalty."""

    def __init__(self):
        super().__init__()
        self.mixture = TopK(4, 1, experts=8, width=32, depth=2)

    def training_step(self, batch, _):
        x, y = batch
        return (self.mixture(x) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


def main(rho=0.1, epochs=10, seed=0, **settings):
    x = torch.randn(512, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1].sin()), batch_size=64)
    lightning.seed_everything(seed, verbose=False)
    model = Regression()
    trainer = lightning.Trainer(max_epochs=epochs, callbacks=[SphereCallback(rho)], **settings)
    trainer.fit(model, data)
    return model, trainer, x


if __name__ == "__main__":
    print(main(logger=False, enable_checkpointing=False)[1].callback_metrics)
