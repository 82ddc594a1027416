"""Muon for the matrices, AdamW for everything else, as one optimizer with one learning rate.

Muon replaces a matrix's momentum by the nearest orthogonal matrix; the factor 0.2 sqrt(larger side)
gives its steps the size that AdamW's have, so both can share learning rate and weight decay.
"""
import torch


@torch.compile(dynamic=False)
def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz iteration on [..., rows, columns], in bf16."""
    x = matrix.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr: float, weight_decay: float, momentum: float = 0.95):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for parameter in group["params"]:
                if "momentum" not in self.state[parameter]:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)
                by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                momenta = [self.state[parameter]["momentum"] for parameter in parameters]
                gradients = [parameter.grad for parameter in parameters]
                torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
                ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
                updates = orthogonalize(torch.stack(ahead)).float().unbind(0)
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, updates, alpha=-group["lr"] * 0.2 * max(shape[-2:]) ** 0.5)


def make_optimizers(model, lr: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    matrices, tables, vectors = [], [], []
    for name, parameter in model.named_parameters():
        if name.endswith(("_proj.weight", "mlp.gate_up", "mlp.down")):
            matrices.append(parameter)
        elif parameter.ndim > 1 and not name.endswith("_bias"):
            tables.append(parameter)
        else:
            vectors.append(parameter)
    adam = [{"params": tables, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [Muon(matrices, lr, weight_decay), torch.optim.AdamW(adam, lr=lr, betas=(0.9, 0.95), eps=1e-10, fused=tables[0].is_cuda)]
