"""Programs of frameworks, each compiled as a user of the framework compiles it: trainers, savers, wrappers, solvers.

A program gets a `Run`, whose `compile` is `smelt.compile`, or returns its argument in the eager run. It returns facts, which
must be equal in both runs (losses, results, names of classes), and a step, which is timed. It runs in a folder of its own;
the files that it leaves there are facts too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Run:
    """One of the two runs of a program."""

    is_compiled: bool

    def compile(self, target: Any, **settings: Any) -> Any:
        """`target` compiled by smelt, or `target` in the eager run."""
        if not self.is_compiled:
            return target
        import smelt

        return smelt.compile(target, **settings)

    def compile_in_place(self, module: nn.Module) -> None:
        """Compile `module` without another object, in the compiled run."""
        if self.is_compiled:
            import smelt

            smelt.compile_(module)

    @contextlib.contextmanager
    def as_smelt_run(self) -> Iterator[None]:
        """`torch.compile` is smelt's, as under `smelt run`; in the eager run it returns its argument."""
        before = torch.compile, torch.compiler.reset
        if self.is_compiled:
            from smelt.cli import torch_compile_redirect

            torch_compile_redirect.redirect()
        else:
            torch.compile = lambda model=None, **_: model if model is not None else lambda m: m  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.compile, torch.compiler.reset = before  # type: ignore[assignment]


Step = Callable[[], Any]
Program = Callable[[Run], tuple[dict[str, Any], Step]]
PROGRAMS: dict[str, Program] = {}
PACKAGES = {
    "smp": "segmentation_models_pytorch",
    "pyg": "torch_geometric",
    "open-clip": "open_clip",
    "pyro": "pyro",
}


def program(name: str) -> Callable[[Program], Program]:
    """Add a program named `PACKAGE: what`."""

    def add(run: Program) -> Program:
        PROGRAMS[name] = run
        return run

    return add


def package_of(name: str) -> str:
    """The package that a program imports."""
    first = name.partition(":")[0]
    return PACKAGES.get(first, first.replace("-", "_"))


def is_installed(name: str) -> bool:
    """Whether the package of a program is there."""
    return importlib.util.find_spec(package_of(name)) is not None


# ------------------------------------------------------------------------------------------------- what programs share


class Net(nn.Module):
    """A classifier of rows of 16 numbers, with dropout and a buffer."""

    def __init__(self, inputs: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, 64)
        self.norm = nn.BatchNorm1d(64)
        self.second = nn.Linear(64, 64)
        self.last = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(F.gelu(self.norm(self.first(x))), 0.1, self.training)
        out: torch.Tensor = self.last(torch.tanh(self.second(x)))
        return out


def rows(count: int = 64, inputs: int = 16, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and classes that depend on them."""
    x = torch.randn(count, inputs)
    return x, (x[:, :classes].argmax(1))


def fitting(
    model: Any,
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[..., torch.Tensor] = F.cross_entropy,
) -> Callable[[], float]:
    """A step of training on the next batch, which returns the loss."""
    turns = itertools.cycle(batches)

    def step() -> float:
        x, y = next(turns)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def losses(step: Callable[[], float], count: int = 4) -> list[float]:
    return [step() for _ in range(count)]


def batched(x: torch.Tensor, y: torch.Tensor, size: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(x.split(size), y.split(size)))


# ------------------------------------------------------------------------------------------------------ transformers


def gpt(**settings: Any) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    size = dict(vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**size, **settings}))


class Sentences(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Token sequences of the given lengths."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.rows = [torch.randint(2, 96, (n,)) for n in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def trained(run: Run, compiled: Callable[[Any], Any] | None = None, **settings: Any) -> Any:
    """The facts of a `Trainer` after training, evaluation and saving. `compiled`: how its model is compiled."""
    import transformers

    raw = gpt()
    model = (compiled or run.compile)(raw)
    arguments = transformers.TrainingArguments(
        "out", per_device_train_batch_size=4, per_device_eval_batch_size=4, max_steps=4, logging_steps=1, save_steps=4,
        report_to=[], use_cpu=True, disable_tqdm=True, optim="sgd", learning_rate=0.05, **settings,
    )  # fmt: skip
    data = Sentences([16] * 16)
    trainer = transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data)
    trainer.train()
    trainer.save_model("saved")
    facts = {
        "log": [
            {k: v for k, v in row.items() if k in ("loss", "grad_norm")} for row in trainer.state.log_history
        ],
        "evaluation": trainer.evaluate()["eval_loss"],
        "class": type(trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)).__name__,
        "signature": trainer._signature_columns,
        "parameters": dict(raw.state_dict()),
    }
    loaded = transformers.GPT2LMHeadModel.from_pretrained("saved")
    facts["loaded"] = loaded.eval()(torch.arange(2, 10)[None]).logits
    batch = {k: v[None] for k, v in data[0].items()}
    step = lambda: trainer.training_step(trainer.model_wrapped, dict(batch))  # noqa: E731
    return facts, step


@program("transformers: Trainer")
def _(run: Run) -> Any:
    return trained(run)


@program("transformers: Trainer, label smoothing")
def _(run: Run) -> Any:
    return trained(run, label_smoothing_factor=0.1)


@program("transformers: Trainer, gradient accumulation")
def _(run: Run) -> Any:
    return trained(run, gradient_accumulation_steps=2)


@program("transformers: Trainer, gradient checkpointing")
def _(run: Run) -> Any:
    return trained(run, gradient_checkpointing=True)


@program("transformers: Trainer, Module.compile with smelt as its backend")
def _(run: Run) -> Any:
    def compiled(model: Any) -> Any:
        if run.is_compiled:
            model.compile(backend="smelt")
        return model

    return trained(run, compiled)


@program("transformers: Trainer, torch_compile under smelt run")
def _(run: Run) -> Any:
    with run.as_smelt_run():
        return trained(run, compiled=lambda model: model, torch_compile=run.is_compiled)


@program("transformers: Trainer, batches of several lengths")
def _(run: Run) -> Any:
    import transformers

    model = run.compile(gpt())
    data = Sentences([5, 5, 9, 9, 12, 12, 16, 16, 7, 7, 11, 11, 3, 3, 14, 14, 20, 20, 23, 23])
    arguments = transformers.TrainingArguments(
        "out",
        per_device_eval_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        prediction_loss_only=False,
    )
    trainer = transformers.Trainer(model, arguments, eval_dataset=data)
    found = [trainer.prediction_step(model, {k: v[None] for k, v in row.items()}, False) for row in data]
    turns = itertools.cycle([{k: v[None] for k, v in row.items()} for row in data])
    step = lambda: trainer.prediction_step(model, next(turns), True)  # noqa: E731
    return {"evaluation": trainer.evaluate()["eval_loss"], "outputs": [f[:2] for f in found]}, step


def generated(run: Run, **how: Any) -> Any:
    model = gpt().eval()
    tokens = torch.randint(2, 96, (2, 5))
    if run.is_compiled:
        model.forward = run.compile(model.forward)

    def generate() -> torch.Tensor:
        torch.manual_seed(1)
        out: torch.Tensor = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=12,
            min_new_tokens=12,
            pad_token_id=1,
            **how,
        )
        return out

    return {"tokens": [generate(), generate()], "class": type(model).__name__}, generate


@program("transformers: generate, greedy")
def _(run: Run) -> Any:
    return generated(run, do_sample=False)


@program("transformers: generate, sampling")
def _(run: Run) -> Any:
    return generated(run, do_sample=True, top_k=20, temperature=0.8)


@program("transformers: generate, beams")
def _(run: Run) -> Any:
    return generated(run, num_beams=3, do_sample=False)


@program("transformers: generate of a compiled module")
def _(run: Run) -> Any:
    model = run.compile(gpt().eval())
    tokens = torch.randint(2, 96, (2, 5))
    options = dict(max_new_tokens=12, min_new_tokens=12, pad_token_id=1, do_sample=False)
    generate = lambda: model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)  # noqa: E731
    return {"tokens": generate(), "class": type(model).__name__}, generate


@program("transformers: image classification pipeline")
def _(run: Run) -> Any:
    import numpy
    import transformers
    from PIL import Image

    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    model = run.compile(transformers.ViTForImageClassification(config).eval())
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    pipe = transformers.pipeline("image-classification", model=model, image_processor=processor, device="cpu")
    pixels = numpy.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=numpy.uint8)
    call = lambda: pipe(Image.fromarray(pixels))  # noqa: E731
    model.save_pretrained("saved")
    return {"answer": call(), "class": type(pipe.model).__name__}, call


# -------------------------------------------------------------------------------------------------------- accelerate


def accelerated(run: Run, **settings: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(0)
    accelerator = Accelerator(cpu=True, **settings)
    raw = Net()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows(64)), batch_size=16, shuffle=True)
    given = raw if settings.get("dynamo_backend") else run.compile(raw)
    model, optimizer, data, schedule = accelerator.prepare(
        given, sgd(raw), data, torch.optim.lr_scheduler.StepLR(sgd(raw), 2)
    )
    found = []
    turns = itertools.cycle(list(data))

    def step(batch: Any = None) -> float:
        x, y = batch or next(turns)
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return loss.item()

    for batch in data:
        found.append(step(batch))
    accelerator.save_state("state")
    accelerator.save_model(model, "saved")
    unwrapped = accelerator.unwrap_model(model, keep_torch_compile=False)
    torch.save(accelerator.get_state_dict(model), "model.pt")
    before = [step() for _ in range(2)]
    accelerator.load_state("state")
    model.eval()
    facts = {
        "losses": found,
        "later": before,
        "class": type(unwrapped).__name__,
        "after loading": model(rows(8)[0]),
    }
    model.train()
    return facts, step


@program("accelerate: prepare, save and load")
def _(run: Run) -> Any:
    return accelerated(run)


@program("accelerate: gradient accumulation")
def _(run: Run) -> Any:
    return accelerated(run, gradient_accumulation_steps=2)


@program("accelerate: dynamo_backend under smelt run")
def _(run: Run) -> Any:
    with run.as_smelt_run():
        return accelerated(run, dynamo_backend="inductor" if run.is_compiled else "no")


# --------------------------------------------------------------------------------------------------------------- peft


def adapted(run: Run, outside: bool) -> Any:
    import peft

    config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, lora_dropout=0.1)
    model = peft.get_peft_model(gpt(), config)
    called = run.compile(model) if outside else model
    if not outside:
        run.compile_in_place(model.base_model.model)
    tokens = torch.randint(2, 96, (4, 12))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)

    def step() -> float:
        optimizer.zero_grad()
        loss = called(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return float(loss)

    facts: dict[str, Any] = {"losses": losses(step), "class": type(called).__name__}
    called.save_pretrained("adapter")
    called.eval()
    facts["adapted"] = called(input_ids=tokens).logits
    with called.disable_adapter():
        facts["base"] = called(input_ids=tokens).logits
    loaded = peft.PeftModel.from_pretrained(gpt(), "adapter")
    facts["adapter"] = {k: v for k, v in loaded.state_dict().items() if "lora" in k}
    called.train()
    return facts, step


@program("peft: LoRA, the whole model compiled")
def _(run: Run) -> Any:
    return adapted(run, outside=True)


@program("peft: LoRA, the base model compiled in place")
def _(run: Run) -> Any:
    return adapted(run, outside=False)


@program("peft: merge and unload of a compiled model")
def _(run: Run) -> Any:
    import peft

    config = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    model = run.compile(peft.get_peft_model(gpt().eval(), config))
    tokens = torch.randint(2, 96, (2, 8))
    facts = {"before": model(input_ids=tokens).logits}
    merged = model.merge_and_unload()
    facts |= {"after": merged(input_ids=tokens).logits, "class": type(merged).__name__}
    merged.save_pretrained("merged")
    compiled = run.compile(merged)
    return facts, lambda: compiled(input_ids=tokens).logits


# ---------------------------------------------------------------------------------------------------------- diffusers


def unet() -> Any:
    import diffusers

    return diffusers.UNet2DModel(
        sample_size=8, in_channels=3, out_channels=3, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
    )  # fmt: skip


@program("diffusers: a training step")
def _(run: Run) -> Any:
    import diffusers
    from diffusers.training_utils import EMAModel

    raw = unet()
    model = run.compile(raw)
    schedule = diffusers.DDPMScheduler(num_train_timesteps=100)
    average = EMAModel(
        model.parameters(), decay=0.9, model_cls=diffusers.UNet2DModel, model_config=model.config
    )
    optimizer = sgd(raw)
    pictures = torch.randn(2, 3, 8, 8)

    def step() -> float:
        noise = torch.randn_like(pictures)
        times = torch.randint(0, 100, (2,))
        loss = F.mse_loss(model(schedule.add_noise(pictures, noise, times), times).sample, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        return loss.item()

    facts = {"losses": losses(step), "class": type(model).__name__}
    model.save_pretrained("saved")
    average.save_pretrained("average")
    return facts, step


@program("diffusers: pipeline with a compiled model, saved and loaded")
def _(run: Run) -> Any:
    import diffusers

    diffusers.utils.logging.disable_progress_bar()
    schedule = diffusers.DDPMScheduler(num_train_timesteps=20)
    pipe = diffusers.DDPMPipeline(unet=unet().eval(), scheduler=schedule)
    pipe.set_progress_bar_config(disable=True)
    pipe.unet = run.compile(pipe.unet)

    def draw(pipe: Any = pipe) -> Any:
        seeded = torch.Generator().manual_seed(3)
        return pipe(batch_size=1, generator=seeded, num_inference_steps=4, output_type="np").images

    facts = {"pictures": draw(), "class": type(pipe.unet).__name__}
    pipe.save_pretrained("saved")
    loaded = diffusers.DDPMPipeline.from_pretrained("saved")
    loaded.set_progress_bar_config(disable=True)
    return {**facts, "loaded": draw(loaded), "loaded class": type(loaded.unet).__name__}, draw


@program("diffusers: schedulers around a compiled model")
def _(run: Run) -> Any:
    import diffusers

    model = run.compile(unet().eval())

    @torch.no_grad()
    def denoise(kind: Any) -> torch.Tensor:
        schedule = kind(num_train_timesteps=50)
        schedule.set_timesteps(5)
        x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * schedule.init_noise_sigma
        for t in schedule.timesteps:
            x = schedule.step(model(schedule.scale_model_input(x, t), t).sample, t, x).prev_sample
        return x

    kinds = diffusers.DDIMScheduler, diffusers.EulerDiscreteScheduler, diffusers.DPMSolverMultistepScheduler
    return {k.__name__: denoise(k) for k in kinds}, lambda: denoise(diffusers.DDIMScheduler)


# ---------------------------------------------------------------------------------------------------------- lightning


def lightning_fit(run: Run, form: str) -> Any:
    import lightning as L

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    os.environ["POSSIBLE_USER_WARNINGS"] = "0"

    class Lit(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.seen: list[float] = []
            if form == "inner":
                self.net = run.compile(self.net)
            elif form == "inner in place":
                run.compile_in_place(self.net)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(x)
            return out

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            loss = F.cross_entropy(self(x), y)
            self.log("loss", loss)
            self.seen.append(loss.item())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            x, y = batch
            self.log("accuracy", (self(x).argmax(1) == y).float().mean())

        def configure_optimizers(self) -> Any:
            optimizer = sgd(self)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    L.seed_everything(0, verbose=False)
    lit = Lit()
    given = run.compile(lit) if form == "module" else lit
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows(64)), batch_size=16)
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, gradient_clip_val=1.0,
    )  # fmt: skip
    trainer.fit(given, data, data)
    trainer.save_checkpoint("saved.ckpt")
    found = torch.load("saved.ckpt", weights_only=False)
    os.remove("saved.ckpt")  # its file names the loops' times
    x, y = rows(16)
    step = fitting(given, [(x, y)], sgd(lit))
    facts = {
        "losses": lit.seen,
        "state": found["state_dict"],
        "optimizer": found["optimizer_states"],
        "accuracy": float(trainer.callback_metrics["accuracy"]),
        "class": type(trainer.lightning_module).__name__,
    }
    return facts, step


@program("lightning: the inner module compiled")
def _(run: Run) -> Any:
    return lightning_fit(run, "inner")


@program("lightning: the inner module compiled in place")
def _(run: Run) -> Any:
    return lightning_fit(run, "inner in place")


@program("lightning: the LightningModule compiled")
def _(run: Run) -> Any:
    return lightning_fit(run, "module")


@program("lightning: Fabric")
def _(run: Run) -> Any:
    import lightning as L

    L.seed_everything(0, verbose=False)
    fabric = L.Fabric(accelerator="cpu", devices=1)
    raw = Net()
    model, optimizer = fabric.setup(run.compile(raw), sgd(raw))
    batches = batched(*rows())
    turns = itertools.cycle(batches)

    def step() -> float:
        x, y = next(turns)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        return loss.item()

    facts = {"losses": losses(step), "class": type(model.module).__name__}
    fabric.save("saved.pt", {"model": model, "optimizer": optimizer})
    return facts, step


# -------------------------------------------------------------------------------------------------------------- torch


@program("torch: DataLoader, lr scheduler, early stopping, saved and loaded")
def _(run: Run) -> Any:
    raw = Net()
    model = run.compile(raw)
    optimizer = torch.optim.SGD(raw.parameters(), lr=torch.tensor(0.05))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1000)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows(72)), batch_size=16, shuffle=True)
    found = []
    for _ in range(2):
        for x, y in data:
            found.append(fitting(model, [(x, y)], optimizer)())
            schedule.step()
    torch.save(model, "model.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "state.pt")
    copied = Net()
    copied.load_state_dict(torch.load("state.pt")["model"])
    facts = {
        "losses": found,
        "loaded": copied.eval()(rows(8)[0]),
        "lr": schedule.get_last_lr(),
        "repr": repr(model),
    }
    return facts, fitting(model, batched(*rows()), optimizer)


@program("torch: swa_utils")
def _(run: Run) -> Any:
    from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

    raw = Net()
    model = run.compile(raw)
    mean, average = AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = sgd(raw)
    schedule = SWALR(optimizer, 0.01, anneal_epochs=2)
    batches = batched(*rows())
    plain = fitting(model, batches, optimizer)

    def step() -> float:
        loss = plain()
        mean.update_parameters(model)
        average.update_parameters(model)
        schedule.step()
        return loss

    facts = {"losses": losses(step), "class": type(mean.module).__name__}
    update_bn(batches, mean)
    torch.save(mean.state_dict(), "mean.pt")
    torch.save(average.state_dict(), "average.pt")
    return {**facts, "mean": mean.eval()(batches[0][0])}, step


@program("torch: weight_norm, spectral_norm, orthogonal, prune")
def _(run: Run) -> Any:
    from torch.nn.utils import parametrizations, prune

    raw = Net()
    parametrizations.weight_norm(raw.first)
    parametrizations.spectral_norm(raw.second)
    model = run.compile(raw)
    step = fitting(model, batched(*rows()), sgd(raw, 0.02))
    facts: dict[str, Any] = {"losses": losses(step)}
    prune.l1_unstructured(model.last, "weight", 0.3)
    facts["pruned"] = losses(fitting(model, batched(*rows()), sgd(raw, 0.02)))
    prune.remove(model.last, "weight")
    torch.nn.utils.parametrize.remove_parametrizations(model.first, "weight")
    facts["removed"] = model.eval()(rows(8)[0])
    torch.save(model.state_dict(), "state.pt")
    model.train()
    return facts, fitting(model, batched(*rows()), sgd(raw, 0.02))


@program("torch: utils.checkpoint")
def _(run: Run) -> Any:
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            make = lambda: nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.2))  # noqa: E731
            self.blocks = nn.ModuleList(make() for _ in range(3))
            self.tail = nn.Sequential(*(make() for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            out: torch.Tensor = checkpoint_sequential(self.tail, 2, x, use_reentrant=False)
            return out

    raw = Deep()
    step = fitting(run.compile(raw), [(x, x) for x in rows()[0].split(16)], sgd(raw), F.mse_loss)
    return {"losses": losses(step)}, step


@program("torch: autocast and GradScaler")
def _(run: Run) -> Any:
    raw = Net()
    model = run.compile(raw)
    optimizer = sgd(raw)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    turns = itertools.cycle(batched(*rows()))

    def step() -> float:
        x, y = next(turns)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return round(loss.item(), 1)

    found = losses(step)
    return {"losses": found, "scale": scaler.get_scale(), "dtype": str(model(rows(4)[0]).dtype)}, step


@program("torch: compiled steps of optimizers")
def _(run: Run) -> Any:
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (torch.optim.AdamW, {"lr": 1e-3, "eps": 1e-4}),
        (torch.optim.RMSprop, {"lr": 1e-3, "eps": 1e-3}),
        (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
        (torch.optim.Adagrad, {"lr": 0.01, "eps": 1e-3}),
    ]
    facts: dict[str, Any] = {}
    for kind, settings in kinds:
        torch.manual_seed(0)
        raw = Net()
        optimizer = kind(raw.parameters(), **settings)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        apply = run.compile(optimizer.step)
        x, y = rows(16)

        def step(
            raw: Any = raw, optimizer: Any = optimizer, schedule: Any = schedule, apply: Any = apply
        ) -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(raw(x), y)
            loss.backward()
            apply()
            schedule.step()
            return loss.item()

        facts[kind.__name__] = losses(step, 6)
        torch.save(optimizer.state_dict(), f"{kind.__name__}.pt")
    return facts, step


@program("torch: a whole training step compiled")
def _(run: Run) -> Any:
    raw = Net()
    optimizer = torch.optim.AdamW(raw.parameters(), lr=1e-3, eps=1e-3)

    @run.compile
    def one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(raw(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    turns = itertools.cycle(batched(*rows()))
    step = lambda: one(*next(turns)).item()  # noqa: E731
    facts = {"losses": losses(step, 6)}
    torch.save(raw.state_dict(), "state.pt")
    return facts, step


@program("torch: DistributedDataParallel")
def _(run: Run) -> Any:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    store = distributed.FileStore(os.path.abspath("store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    os.remove("store")
    raw = Net()
    model = DistributedDataParallel(run.compile(raw))
    step = fitting(model, batched(*rows()), sgd(raw))
    facts = {"losses": losses(step), "class": type(model.module).__name__}
    with model.no_sync():
        F.cross_entropy(model(rows(8)[0]), rows(8)[1]).backward()
    facts["gradients"] = [p.grad for p in raw.parameters()]
    torch.save(model.state_dict(), "state.pt")
    return facts, step


@program("torch: a compiled DistributedDataParallel")
def _(run: Run) -> Any:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    store = distributed.FileStore(os.path.abspath("store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    os.remove("store")
    model = run.compile(DistributedDataParallel(Net()))
    step = fitting(model, batched(*rows()), sgd(model))
    facts = {"losses": losses(step), "class": type(model).__name__}
    torch.save(model.state_dict(), "state.pt")
    return facts, step


@program("torch: LSTM over packed sequences")
def _(run: Run) -> Any:
    from torch.nn.utils import rnn

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(50, 16)
            self.lstm = nn.LSTM(16, 24, batch_first=True)
            self.last = nn.Linear(24, 2)

        def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = rnn.pack_padded_sequence(
                self.words(tokens), lengths, batch_first=True, enforce_sorted=False
            )
            padded, _ = rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            out: torch.Tensor = self.last(padded.mean(1))
            return out

    raw = Reader()
    model = run.compile(raw)
    optimizer = sgd(raw)
    batches = [
        (torch.randint(0, 50, (4, n)), torch.tensor([n, n - 1, 2, 3]), torch.randint(0, 2, (4,)))
        for n in (6, 9, 12)
    ]
    turns = itertools.cycle(batches)

    def step() -> float:
        tokens, lengths, y = next(turns)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens, lengths), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return {"losses": losses(step, 6)}, step


# ------------------------------------------------------------------------------------------------- pictures and others


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


@program("torchmetrics: metrics beside and in a compiled model")
def _(run: Run) -> Any:
    import torchmetrics

    metrics = torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.Accuracy("multiclass", num_classes=4),
            "f1": torchmetrics.F1Score("multiclass", num_classes=4),
        }
    )
    model = run.compile(Net().eval())
    update = run.compile(metrics.update)
    turns = itertools.cycle(batched(*rows()))

    def step() -> None:
        x, y = next(turns)
        update(model(x).softmax(-1), y)

    for _ in range(4):
        step()
    facts = {
        "metrics": metrics.compute(),
        "states": dict(metrics.state_dict()),
        "count": metrics["accuracy"].update_count,
    }
    metrics.reset()
    return {**facts, "after": len(metrics)}, step


@program("pyg: GCN, GAT and SAGE trained")
def _(run: Run) -> Any:
    from torch_geometric import nn as gnn

    edges = torch.randint(0, 40, (2, 160))
    x, y = rows(40)
    facts: dict[str, Any] = {}
    for kind in (gnn.GCN, gnn.GAT, gnn.GraphSAGE):
        torch.manual_seed(0)
        raw = kind(16, 32, 2, 4, dropout=0.1)
        model = run.compile(raw)
        step = fitting(lambda x, model=model: model(x, edges), [(x, y)], sgd(raw))
        facts[kind.__name__] = losses(step)
    return facts, step


@program("pyg: batches of graphs of several sizes")
def _(run: Run) -> Any:
    from torch_geometric import nn as gnn
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    class Graphs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = gnn.GINConv(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32)))
            self.last = nn.Linear(32, 2)

        def forward(self, data: Any) -> torch.Tensor:
            pooled = gnn.global_mean_pool(self.conv(data.x, data.edge_index), data.batch, data.num_graphs)
            out: torch.Tensor = self.last(pooled)
            return out

    sizes = [3, 5, 8, 4, 9, 6, 7, 10, 11, 4, 6, 5]
    data = [Data(torch.randn(n, 16), torch.randint(0, n, (2, 2 * n)), y=torch.tensor([n % 2])) for n in sizes]
    raw = Graphs()
    model = run.compile(raw)
    step = fitting(model, [(b, b.y) for b in DataLoader(data, batch_size=3)], sgd(raw))
    return {"losses": losses(step, 8)}, step


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


@program("x-transformers: training and generation")
def _(run: Run) -> Any:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    net = TransformerWrapper(
        num_tokens=40, max_seq_len=32, attn_layers=Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True)
    )
    wrapped = AutoregressiveWrapper(net)
    model = run.compile(wrapped)
    optimizer = sgd(wrapped)
    tokens = torch.randint(0, 40, (2, 16))

    def step() -> float:
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        return float(loss)

    facts = {"losses": losses(step)}
    return {**facts, "generated": model.generate(tokens[:, :4], 8, temperature=0.0)}, step


@program("tensordict: modules and functional calls")
def _(run: Run) -> Any:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    raw = TensorDictSequential(
        TensorDictModule(Net(), in_keys=["x"], out_keys=["logits"]),
        TensorDictModule(lambda z: z.softmax(-1), in_keys=["logits"], out_keys=["p"]),
    )
    model = run.compile(raw)
    optimizer = sgd(raw)
    x, y = rows(16)

    def step() -> float:
        optimizer.zero_grad()
        out = model(TensorDict({"x": x}, [16]))
        loss = F.nll_loss(out["p"].log(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    facts = {"losses": losses(step), "keys": sorted(model(TensorDict({"x": x}, [16])).keys())}
    TensorDict.from_module(raw).data.memmap("saved")
    return facts, step


@program("e3nn: an equivariant network trained")
def _(run: Run) -> Any:
    from e3nn import o3

    class Equivariant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tensor = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o")
            self.linear = o3.Linear("4x0e + 2x1o", "4x0e")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            around = o3.spherical_harmonics("1x0e + 1x1o", x[:, :3], normalize=True)
            out: torch.Tensor = self.linear(self.tensor(x, around))
            return out

    raw = Equivariant()
    x, y = rows(32, inputs=10)
    step = fitting(run.compile(raw), [(x, y)], sgd(raw))
    return {"losses": losses(step)}, step


@program("gpytorch: hyperparameters of a Gaussian process")
def _(run: Run) -> Any:
    import gpytorch

    class Process(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    x = torch.linspace(0, 1, 30)
    y = torch.sin(6 * x) + 0.1 * torch.randn(30)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    raw = Process(x, y, likelihood)
    model = run.compile(raw)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, raw)
    step = fitting(
        model, [(x, y)], torch.optim.Adam(raw.parameters(), lr=0.05), lambda out, y: -objective(out, y)
    )
    facts: dict[str, Any] = {"losses": losses(step)}
    model.eval()
    with torch.no_grad():
        facts["predicted"] = model(torch.linspace(0, 1, 7)).mean
    model.train()
    return facts, step


@program("pyro: stochastic variational inference")
def _(run: Run) -> Any:
    import pyro
    from pyro import distributions
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal

    pyro.set_rng_seed(0)
    net = run.compile(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)))

    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        weight = pyro.sample("weight", distributions.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", distributions.Normal(x @ weight + net(x).squeeze(-1).detach(), 0.5), obs=y)

    x = torch.randn(20, 3)
    y = x.sum(1)
    inference = SVI(model, AutoNormal(model), pyro.optim.SGD({"lr": 1e-3}), Trace_ELBO())
    step = lambda: inference.step(x, y)  # noqa: E731
    return {"losses": losses(step), "store": dict(pyro.get_param_store())}, step


@program("torchdiffeq: a neural differential equation trained")
def _(run: Run) -> Any:
    from torchdiffeq import odeint, odeint_adjoint

    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    slope = run.compile(net)

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = slope

        def forward(self, t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.slope(x) * torch.cos(t)
            return out

    field = Field()
    times = torch.linspace(0, 1, 4)
    start = torch.randn(8, 2)
    step = fitting(
        lambda x: odeint(field, x, times, method="rk4")[-1], [(start, start.sin())], sgd(net), F.mse_loss
    )
    facts: dict[str, Any] = {"losses": losses(step)}
    adjoint = fitting(
        lambda x: odeint_adjoint(field, x, times)[-1], [(start, start.sin())], sgd(net), F.mse_loss
    )
    return {**facts, "adjoint": losses(adjoint, 2)}, step


@program("torchsde: a neural stochastic differential equation")
def _(run: Run) -> Any:
    import torchsde

    class Field(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift = run.compile(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)))
            self.diffusion = run.compile(nn.Sequential(nn.Linear(2, 2), nn.Sigmoid()))

        def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.drift(y)
            return out

        def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.diffusion(y)
            return out

    field = Field()
    start, times = torch.randn(4, 2), torch.linspace(0, 1, 3)

    def solve(x: torch.Tensor) -> Any:
        noise = torchsde.BrownianInterval(0.0, 1.0, size=(4, 2), entropy=7)
        return torchsde.sdeint(field, x, times, bm=noise, dt=0.1, method="euler")[-1]

    step = fitting(solve, [(start, start)], sgd(field), F.mse_loss)
    return {"losses": losses(step)}, step


@program("pytorch-metric-learning: miners and losses")
def _(run: Run) -> Any:
    from pytorch_metric_learning import losses as metric_losses
    from pytorch_metric_learning import miners

    raw = Net(classes=8)
    model = run.compile(raw)
    loss_of, mine = metric_losses.TripletMarginLoss(), miners.MultiSimilarityMiner()
    apply = run.compile(lambda embedded, y: loss_of(embedded, y, mine(embedded, y)))
    x, y = rows(24)
    step = fitting(model, [(x, y)], sgd(raw, 0.01), apply)
    return {"losses": losses(step)}, step


@program("pytorch-tabnet: its network trained")
def _(run: Run) -> Any:
    from pytorch_tabnet.tab_network import TabNet

    raw = TabNet(16, 4, n_d=8, n_a=8, n_steps=2, group_attention_matrix=torch.eye(16))
    model = run.compile(raw)

    def loss_of(out: Any, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out[0], y) - 1e-3 * out[1]

    step = fitting(model, batched(*rows(512), 256), sgd(raw, 0.01), loss_of)
    return {"losses": losses(step)}, step
