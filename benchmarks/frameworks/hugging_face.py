"""Programs of transformers, accelerate, peft and diffusers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.frameworks.programs import Net, Run, losses, program, rows, sgd

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
