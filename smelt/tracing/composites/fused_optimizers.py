"""Torch's fused optimizers (`torch._fused_adam_` and others) as their arithmetic, tensor by tensor.

The torch-level graph has the call. The aten graph has the arithmetic of the CPU kernels (Fused*Kernel.cpp of ATen):
bias corrections in double precision, everything else in that of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_CALL, Reason
from smelt.tracing.record.call_arguments import Args, Kwargs

Tensors = Sequence[torch.Tensor]


def _check(name: str, grad_scale: Any, found_inf: Any) -> None:
    if grad_scale is not None or found_inf is not None:
        raise Unsupported(Reason(UNSUPPORTED_CALL, f"{name} with a scale of the gradients"))


def _gradient(grad: torch.Tensor, param: torch.Tensor, weight_decay: float, maximize: bool) -> torch.Tensor:
    grad = -grad if maximize else grad
    return grad.add(param, alpha=weight_decay) if weight_decay != 0 else grad


def _adam(decoupled: bool) -> Callable[..., None]:
    def adam(
        params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, max_exp_avg_sqs: Tensors, steps: Tensors,
        *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
        grad_scale: Any = None, found_inf: Any = None,
    ) -> None:  # fmt: skip
        _check("_fused_adam_", grad_scale, found_inf)
        for i, (param, grad, exp_avg, exp_avg_sq) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs)):
            grad = _gradient(grad, param, 0 if decoupled else weight_decay, maximize)
            if decoupled and weight_decay != 0:
                param.mul_(1 - lr * weight_decay)
            exp_avg.lerp_(grad, 1 - beta1)
            exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            step = steps[i].double()
            second = exp_avg_sq
            if amsgrad:
                second = max_exp_avg_sqs[i].copy_(torch.maximum(max_exp_avg_sqs[i], exp_avg_sq))
            denominator = (second.sqrt() / (1 - beta2**step).sqrt()).add_(eps)
            param.sub_(exp_avg / denominator * (lr / (1 - beta1**step)))

    return adam


def _sgd(
    params: Tensors, grads: Tensors, momenta: Tensors, *, weight_decay: float, momentum: float, lr: Any, dampening: float,
    nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    _check("_fused_sgd_", grad_scale, found_inf)
    for i, (param, grad) in enumerate(zip(params, grads)):
        grad = _gradient(grad, param, weight_decay, maximize)
        if momentum != 0:
            buffer = momenta[i]
            buffer.copy_(grad) if is_first_step else buffer.mul_(momentum).add_(grad, alpha=1 - dampening)
            grad = grad.add(buffer, alpha=momentum) if nesterov else buffer
        param.sub_(grad * lr)


def _adagrad(
    params: Tensors, grads: Tensors, sums: Tensors, steps: Tensors, *, lr: Any, lr_decay: float, weight_decay: float,
    eps: float, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    _check("_fused_adagrad_", grad_scale, found_inf)
    for param, grad, total, step in zip(params, grads, sums, steps):
        grad = _gradient(grad, param, weight_decay, maximize)
        total.addcmul_(grad, grad)
        rate = lr / (1 + (step.double() - 1) * lr_decay)
        param.sub_(grad / total.sqrt().add_(eps) * rate)


def _composite(compute: Callable[..., None]) -> Callable[[Args, Kwargs], None]:
    return lambda args, kwargs: compute(*args, **kwargs)


COMPOSITES: dict[Any, Callable[[Args, Kwargs], None]] = {
    getattr(torch, name): _composite(compute)
    for name, compute in (
        ("_fused_adam_", _adam(False)),
        ("_fused_adamw_", _adam(True)),
        ("_fused_sgd_", _sgd),
        ("_fused_adagrad_", _adagrad),
    )
    if hasattr(torch, name)
}
