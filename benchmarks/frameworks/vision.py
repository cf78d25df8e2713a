"""Programs of libraries for pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.frameworks.programs import Run, fitting, losses, program, sgd


@program("timm: training with an average of the weights")
def _(run: Run) -> Any:
    import timm
    import timm.loss
    import timm.optim
    import timm.scheduler
    import timm.utils

    raw = timm.create_model("resnet10t", num_classes=4)
    model = run.compile(raw)
    average = timm.utils.ModelEmaV3(raw, decay=0.9)
    optimizer = timm.optim.create_optimizer_v2(raw, opt="sgd", lr=0.01, momentum=0.9, weight_decay=1e-4)
    schedule = timm.scheduler.CosineLRScheduler(optimizer, t_initial=10)
    plain = fitting(
        model,
        [(torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3]))],
        optimizer,
        timm.loss.LabelSmoothingCrossEntropy(),
    )

    def step() -> float:
        loss = plain()
        average.update(model)
        schedule.step_update(1)
        return loss

    facts = {"losses": losses(step, 3), "class": type(timm.utils.unwrap_model(model)).__name__}
    torch.save(timm.utils.get_state_dict(average), "average.pt")
    return facts, step


@program("torchvision: fine-tuning with feature extraction")
def _(run: Run) -> Any:
    import torchvision
    from torchvision.models import feature_extraction

    raw = torchvision.models.resnet18(num_classes=4)
    for name, p in raw.named_parameters():
        p.requires_grad_(name.startswith(("layer4", "fc")))
    model = run.compile(raw)
    trained = sgd(raw, 0.01)
    step = fitting(model, [(torch.randn(4, 3, 64, 64), torch.tensor([0, 1, 2, 3]))], trained)
    facts: dict[str, Any] = {"losses": losses(step, 3)}
    parts = run.compile(feature_extraction.create_feature_extractor(raw.eval(), ["layer1", "layer3"]))
    facts["features"] = parts(torch.randn(2, 3, 32, 32))
    raw.train()
    return facts, step


@program("smp: a segmentation model trained, saved and loaded")
def _(run: Run) -> Any:
    import segmentation_models_pytorch as smp

    raw = smp.Unet("resnet18", encoder_weights=None, classes=2)
    model = run.compile(raw)
    data = [(torch.randn(4, 3, 64, 64), torch.randint(0, 2, (4, 64, 64)))]
    step = fitting(model, data, sgd(raw, 1e-3), smp.losses.DiceLoss("multiclass"))
    facts: dict[str, Any] = {"losses": losses(step, 3), "class": type(model).__name__}
    model.eval().save_pretrained("saved")
    facts["loaded"] = smp.from_pretrained("saved").eval()(data[0][0])
    model.train()
    return facts, step


@program("monai: training, sliding windows, metrics")
def _(run: Run) -> Any:
    from monai.inferers import sliding_window_inference
    from monai.losses import DiceCELoss
    from monai.metrics import DiceMetric
    from monai.networks.nets import UNet

    raw = UNet(2, 1, 2, channels=(8, 16), strides=(2,), num_res_units=1)
    model = run.compile(raw)
    step = fitting(
        model,
        [(torch.randn(2, 1, 16, 16), torch.randint(0, 2, (2, 1, 16, 16)))],
        sgd(raw, 0.01),
        DiceCELoss(to_onehot_y=True, softmax=True),
    )
    facts: dict[str, Any] = {"losses": losses(step)}
    model.eval()
    with torch.no_grad():
        found = sliding_window_inference(torch.randn(1, 1, 40, 40), (16, 16), 2, model)
    metric = DiceMetric()
    metric(F.one_hot(found.argmax(1), 2).movedim(-1, 1), torch.ones(1, 2, 40, 40))
    facts |= {"windows": found, "metric": metric.aggregate()}
    model.train()
    return facts, step


@program("kornia: augmentation and geometry")
def _(run: Run) -> Any:
    from kornia import augmentation, geometry

    augment = run.compile(augmentation.AugmentationSequential(
        augmentation.RandomHorizontalFlip(p=0.5), augmentation.RandomAffine(15.0, p=0.7),
        augmentation.ColorJitter(0.1, 0.1, 0.1, 0.1),
    ))  # fmt: skip
    warp = run.compile(lambda x, m: geometry.warp_perspective(x, m, (16, 16)))
    x = torch.rand(2, 3, 16, 16)
    facts = {
        "augmented": [augment(x) for _ in range(4)],
        "warped": warp(x, torch.eye(3).expand(2, 3, 3) + 0.01),
    }
    return facts, lambda: augment(x)


@program("open-clip: contrastive training")
def _(run: Run) -> Any:
    import open_clip
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    raw = CLIP(
        16, CLIPVisionCfg(layers=2, width=32, head_width=16, patch_size=8, image_size=16),
        CLIPTextCfg(context_length=8, vocab_size=40, width=32, heads=2, layers=2),
    )  # fmt: skip
    model = run.compile(raw)
    loss_of = open_clip.ClipLoss()
    pictures, words = torch.randn(4, 3, 16, 16), torch.randint(1, 40, (4, 8))
    step = fitting(
        lambda x: model(x, words), [(pictures, pictures)], sgd(raw, 0.01), lambda out, _: loss_of(*out[:3])
    )
    facts: dict[str, Any] = {"losses": losses(step)}
    return {**facts, "encoded": model.encode_image(pictures), "class": type(model).__name__}, step
