"""Programs of third-party libraries, small and with random weights: each compiled whole, in inference and in training.

`make sweep` installs the libraries (requirements/libraries.txt). What a library gives as functions or objects is put into a
module whose parameters are what it is given.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import models, weights

Built = tuple[nn.Module, dict[str, Any]]
PROGRAMS: dict[str, Callable[[], Built]] = {}


def names() -> list[str]:
    return sorted(PROGRAMS)


def build(name: str) -> Built:
    """The program `name`, `LIBRARY: what`, with filled weights. Raises where the library is not installed."""
    module, inputs = PROGRAMS[name]()
    weights.fill(module)
    with torch.no_grad():
        module.eval()(**inputs)
    return module, inputs


def program(name: str) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    def add(build: Callable[[], Built]) -> Callable[[], Built]:
        PROGRAMS[name] = build
        return build

    return add


def _of(path: str) -> Any:
    """What is imported by a dotted name."""
    module, _, attribute = path.rpartition(".")
    owner = module.rpartition(".")[2]
    held = _of(module) if owner[:1].isupper() else importlib.import_module(module)
    return getattr(held, attribute)


def _module(name: str, path: str, inputs: Callable[[], dict[str, Any]], *args: Any, **kwargs: Any) -> None:
    """A program that is one class of a library, made of these arguments."""
    PROGRAMS[name] = lambda: (_of(path)(*args, **kwargs), inputs())


class Calling(nn.Module):
    """A function of parameters, of modules (named in the function's order) and of what the module is called with."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        self.names = list(parts)
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, torch.Tensor) else part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*(getattr(self, name) for name in self.names), *args, **kwargs)


def _pictures(channels: int = 3, size: int = 32, name: str = "x") -> Callable[[], dict[str, Any]]:
    return lambda: {name: torch.rand(2, channels, size, size)}


def _floats(*shape: int, name: str = "x") -> Callable[[], dict[str, Any]]:
    return lambda: {name: torch.randn(*shape)}


def _tokens(length: int = 16, name: str = "x") -> Callable[[], dict[str, Any]]:
    return lambda: {name: torch.randint(0, 50, (2, length))}


# ------------------------------------------------------------------------------------------------ tensor notation


@program("einops: rearrange, reduce, repeat, einsum, layers")
def _einops() -> Built:
    einops = importlib.import_module("einops")
    layers = importlib.import_module("einops.layers.torch")

    def attend(project: nn.Module, q: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        keys, values = einops.rearrange(project(x), "b n (two h d) -> two b h n d", two=2, h=2)
        queries = einops.repeat(q, "h d -> b h 1 d", b=x.shape[0])
        scores = einops.einsum(queries, keys, "b h i d, b h j d -> b h i j").softmax(-1)
        return einops.reduce(scores @ values, "b h i d -> b (h d)", "sum")

    project = layers.EinMix("b n c -> b n d", weight_shape="c d", bias_shape="d", c=8, d=32)
    return Calling(attend, project=project, q=torch.randn(2, 8)), {"x": torch.randn(2, 5, 8)}


@program("einx: dot, softmax, id")
def _einx() -> Built:
    einx = importlib.import_module("einx")

    def attend(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = einx.dot("b n c, c d -> b n d", x, w)
        scores = einx.softmax("b i [j]", einx.dot("b i d, b j d -> b i j", y, y))
        return einx.dot("b i j, b j d -> b i d", scores, y)

    return Calling(attend, w=torch.randn(8, 6)), {"x": torch.randn(2, 5, 8)}


@program("opt_einsum: contract")
def _opt_einsum() -> Built:
    contract = _of("opt_einsum.contract")
    return (
        Calling(
            lambda a, b, x: contract("bi,ij,jk,bk->bk", x, a, b, x), a=torch.randn(4, 5), b=torch.randn(5, 4)
        ),
        {"x": torch.randn(3, 4)},
    )


# ------------------------------------------------------------------------------------------------------- language


@program("x-transformers: decoder with rotary positions")
def _x_transformers() -> Built:
    x = importlib.import_module("x_transformers")
    layers = x.Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True, attn_dim_head=16)
    return x.TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers), _tokens()()


@program("x-transformers: encoder with gated layers and relative positions")
def _x_encoder() -> Built:
    x = importlib.import_module("x_transformers")
    layers = x.Encoder(
        dim=32, depth=2, heads=2, attn_dim_head=16, ff_glu=True, rel_pos_bias=True, use_rmsnorm=True
    )
    return x.TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers), _tokens()()


_module("local-attention: transformer", "local_attention.transformer.LocalTransformer", _tokens(), num_tokens=50, dim=32,
        depth=2, max_seq_len=32, local_attn_window_size=8, heads=2, dim_head=16, causal=True)  # fmt: skip
_module("performer-pytorch: Performer with random features", "performer_pytorch.PerformerLM", _tokens(), num_tokens=50,
        max_seq_len=32, dim=32, depth=2, heads=2, dim_head=16, nb_features=8)  # fmt: skip


@program("rotary-embedding-torch: attention with rotated queries")
def _rotary() -> Built:
    def attend(rotary: Any, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        heads = rotary.rotate_queries_or_keys((x @ w).view(2, 6, 2, 8).transpose(1, 2))
        scores: torch.Tensor = (heads @ heads.mT).softmax(-1)
        return scores @ heads

    rotary = _of("rotary_embedding_torch.RotaryEmbedding")(dim=8)
    return Calling(attend, rotary=rotary, w=torch.randn(16, 16)), {"x": torch.randn(2, 6, 16)}


def _small_llama() -> Any:
    config = models.hf.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    return models.hf.LlamaForCausalLM(config)


@program("peft: LoRA on Llama")
def _peft_lora() -> Built:
    peft = importlib.import_module("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    return peft.get_peft_model(_small_llama(), config), _tokens(name="input_ids")()


@program("peft: IA3 on Llama")
def _peft_ia3() -> Built:
    peft = importlib.import_module("peft")
    config = peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])
    return peft.get_peft_model(_small_llama(), config), _tokens(name="input_ids")()


@program("accelerate: prepared GPT-2")
def _accelerate() -> Built:
    accelerate = importlib.import_module("accelerate")
    config = models.hf.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=32, use_cache=False
    )
    prepared = accelerate.Accelerator(cpu=True).prepare_model(models.hf.GPT2LMHeadModel(config))
    return prepared, _tokens(name="input_ids")()


@program("open_clip_torch: CLIP")
def _open_clip() -> Built:
    model = _of("open_clip.model.CLIP")(
        embed_dim=16,
        vision_cfg={"layers": 2, "width": 32, "head_width": 16, "patch_size": 8, "image_size": 32},
        text_cfg={"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 2},
    )
    return model, {"image": torch.rand(2, 3, 32, 32), "text": torch.randint(0, 50, (2, 8))}


# ------------------------------------------------------------------------------------------------------- pictures

_module("vit-pytorch: ViT", "vit_pytorch.ViT", _pictures(name="img"), image_size=32, patch_size=8, num_classes=5,
        dim=32, depth=2, heads=2, mlp_dim=64, dropout=0.1)  # fmt: skip
_module("vit-pytorch: SimpleViT", "vit_pytorch.SimpleViT", _pictures(name="img"), image_size=32, patch_size=8,
        num_classes=5, dim=32, depth=2, heads=2, mlp_dim=64)  # fmt: skip
_module("vit-pytorch: CvT", "vit_pytorch.cvt.CvT", _pictures(), num_classes=5, s1_emb_dim=8, s2_emb_dim=16, s3_emb_dim=24,
        s1_heads=1, s2_heads=1, s3_heads=2, s3_depth=2)  # fmt: skip
_module("torchvision: ResNet-18", "torchvision.models.resnet18", _pictures(size=64), num_classes=5)
_module("torchvision: Swin v2", "torchvision.models.swin_transformer.SwinTransformer", _pictures(), patch_size=[4, 4],
        embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=[4, 4], num_classes=5)  # fmt: skip
_module("torchvision: LR-ASPP", "torchvision.models.segmentation.lraspp_mobilenet_v3_large",
        _pictures(size=64, name="input"), weights_backbone=None, num_classes=3)  # fmt: skip
_module("segmentation-models-pytorch: Unet", "segmentation_models_pytorch.Unet", _pictures(size=64), "resnet18",
        encoder_weights=None, classes=2)  # fmt: skip
_module("segmentation-models-pytorch: FPN", "segmentation_models_pytorch.FPN", _pictures(size=64), "mobilenet_v2",
        encoder_weights=None, classes=2)  # fmt: skip
_module("monai: UNet", "monai.networks.nets.UNet", _pictures(1, 32), spatial_dims=2, in_channels=1, out_channels=2,
        channels=(4, 8, 16), strides=(2, 2), num_res_units=1)  # fmt: skip
_module("monai: SwinUNETR", "monai.networks.nets.SwinUNETR", _pictures(1, 64, name="x_in"), in_channels=1, out_channels=2,
        feature_size=12, spatial_dims=2)  # fmt: skip
_module("monai: UNETR", "monai.networks.nets.UNETR", _pictures(1, 32, name="x_in"), in_channels=1, out_channels=2,
        img_size=(32, 32), feature_size=4, hidden_size=24, mlp_dim=32, num_heads=2, spatial_dims=2)  # fmt: skip
_module("diffusers: UNet2DConditionModel", "diffusers.UNet2DConditionModel",
        lambda: {"sample": torch.randn(2, 4, 16, 16), "timestep": torch.tensor(3),
                 "encoder_hidden_states": torch.randn(2, 5, 8), "return_dict": False},
        sample_size=16, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, cross_attention_dim=8,
        attention_head_dim=4, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))  # fmt: skip
_module("diffusers: AutoencoderKL", "diffusers.AutoencoderKL",
        lambda: {"sample": torch.randn(1, 3, 32, 32), "return_dict": False},
        block_out_channels=(8, 16), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4)  # fmt: skip
_module("diffusers: DiTTransformer2DModel", "diffusers.DiTTransformer2DModel",
        lambda: {"hidden_states": torch.randn(2, 4, 8, 8), "timestep": torch.tensor([1, 5]),
                 "class_labels": torch.tensor([0, 3]), "return_dict": False},
        num_attention_heads=2, attention_head_dim=8, num_layers=2, sample_size=8, norm_num_groups=4,
        num_embeds_ada_norm=10)  # fmt: skip


_module("efficientnet-pytorch: EfficientNet-B0", "efficientnet_pytorch.EfficientNet.from_name",
        _pictures(size=64, name="inputs"), "efficientnet-b0", num_classes=4, image_size=64)  # fmt: skip
_module("perceiver-pytorch: Perceiver", "perceiver_pytorch.Perceiver", lambda: {"data": torch.randn(2, 8, 8, 3)},
        input_channels=3, input_axis=2, num_freq_bands=4, max_freq=10.0, depth=2, num_latents=6, latent_dim=16,
        cross_heads=1, latent_heads=2, cross_dim_head=8, latent_dim_head=8, num_classes=5)  # fmt: skip
_module("vector-quantize-pytorch: VectorQuantize", "vector_quantize_pytorch.VectorQuantize", _floats(2, 6, 8), dim=8,
        codebook_size=12, decay=0.8, commitment_weight=1.0)  # fmt: skip


@program("pytorch-msssim: SSIM and MS-SSIM")
def _msssim() -> Built:
    measures = importlib.import_module("pytorch_msssim")

    def look(gain: torch.Tensor, x: torch.Tensor, noise: torch.Tensor) -> Any:
        y = (x * gain.sigmoid() + noise) / 2  # pictures that have nothing in common make sums that cancel
        return measures.ssim(x, y, data_range=1), measures.ms_ssim(x, y, data_range=1, win_size=3)

    pictures = {"x": torch.rand(2, 3, 64, 64), "noise": torch.rand(2, 3, 64, 64)}
    return Calling(look, gain=torch.rand(3, 1, 1)), pictures


@program("kornia: augmentations' geometry and filters")
def _kornia() -> Built:
    kornia = importlib.import_module("kornia")

    def look(angle: torch.Tensor, sigma: torch.Tensor, x: torch.Tensor) -> Any:
        turned = kornia.geometry.transform.rotate(x, angle)
        soft = kornia.filters.gaussian_blur2d(turned, (5, 5), sigma.abs()[None] + 0.5)
        gray = kornia.color.rgb_to_grayscale(soft)
        return kornia.filters.sobel(gray), kornia.losses.ssim_loss(soft, x, 5), kornia.color.rgb_to_hsv(soft)

    return Calling(look, angle=torch.randn(2), sigma=torch.randn(2)), _pictures()()


@program("kornia: homography and matching losses")
def _kornia_warp() -> Built:
    kornia = importlib.import_module("kornia")

    def warp(matrix: torch.Tensor, x: torch.Tensor) -> Any:
        transform = torch.eye(3) + 0.01 * matrix
        warped = kornia.geometry.transform.warp_perspective(x, transform[None].expand(2, 3, 3), (32, 32))
        return kornia.losses.total_variation(warped), kornia.feature.harris_response(warped)

    return Calling(warp, matrix=torch.randn(3, 3)), _pictures()()


# ------------------------------------------------------------------------------- probability, flows, processes


@program("gpytorch: log marginal likelihood of an exact process")
def _gpytorch() -> Built:
    gpytorch = importlib.import_module("gpytorch")

    class Likelihood(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.noise = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            prior = gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))
            return self.noise(prior).log_prob(y)

    return Likelihood(), {"x": torch.rand(8, 2), "y": torch.randn(8)}


@program("pyro: log density of a trace")
def _pyro() -> Built:
    pyro = importlib.import_module("pyro")

    def density(scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        def model() -> None:
            z = pyro.sample("z", pyro.distributions.Normal(0.0, scale.exp()), obs=x[:, 0])
            pyro.sample("x", pyro.distributions.Normal(z, 1.0), obs=x[:, 1])

        return pyro.poutine.trace(model).get_trace().log_prob_sum()

    return Calling(density, scale=torch.randn(())), {"x": torch.randn(5, 2)}


@program("zuko: neural spline flow")
def _zuko() -> Built:
    flow = _of("zuko.flows.NSF")(features=3, context=2, transforms=2, hidden_features=(16, 16))
    return Calling(lambda f, x, c: f(c).log_prob(x), flow=flow), {
        "x": torch.randn(4, 3),
        "c": torch.randn(4, 2),
    }


@program("zuko: masked autoregressive flow")
def _zuko_maf() -> Built:
    flow = _of("zuko.flows.MAF")(features=3, transforms=2, hidden_features=(16,))
    return Calling(lambda f, x: f().log_prob(x), flow=flow), {"x": torch.randn(4, 3)}


@program("nflows: masked autoregressive flow")
def _nflows() -> Built:
    transforms = importlib.import_module("nflows.transforms")
    steps = [
        transforms.MaskedAffineAutoregressiveTransform(features=3, hidden_features=8),
        transforms.ReversePermutation(features=3),
        transforms.PiecewiseRationalQuadraticCouplingTransform(
            torch.tensor([1, 0, 1]),
            lambda i, o: _of("nflows.nn.nets.ResidualNet")(i, o, 8),
            tails="linear",
            num_bins=4,
        ),
    ]
    normal = _of("nflows.distributions.StandardNormal")([3])
    flow = _of("nflows.flows.Flow")(transforms.CompositeTransform(steps), normal)
    return Calling(lambda f, x: f.log_prob(x), flow=flow), {"x": torch.randn(4, 3)}


@program("normflows: coupling blocks and actnorm")
def _normflows() -> Built:
    flows = importlib.import_module("normflows.flows")
    mlp = _of("normflows.nets.MLP")
    steps = [
        step
        for _ in range(2)
        for step in (
            flows.AffineCouplingBlock(mlp([1, 8, 2])),
            flows.Permute(2, mode="swap"),
            flows.ActNorm(2),
        )
    ]
    base = _of("normflows.distributions.base.DiagGaussian")(2)
    flow = _of("normflows.NormalizingFlow")(base, steps)
    return Calling(lambda f, x: (f.log_prob(x), f.forward_kld(x)), flow=flow), {"x": torch.randn(5, 2)}


@program("normflows: autoregressive spline")
def _normflows_spline() -> Built:
    flows = importlib.import_module("normflows.flows")
    steps = [flows.AutoregressiveRationalQuadraticSpline(2, 1, 8), flows.LULinearPermute(2)]
    base = _of("normflows.distributions.base.DiagGaussian")(2)
    flow = _of("normflows.NormalizingFlow")(base, steps)
    return Calling(lambda f, x: f.log_prob(x), flow=flow), {"x": torch.randn(5, 2)}


@program("torchdiffeq: Runge-Kutta of fixed and adaptive steps")
def _torchdiffeq() -> Built:
    odeint = _of("torchdiffeq.odeint")
    field = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def solve(field: nn.Module, y: torch.Tensor, t: torch.Tensor) -> Any:
        return odeint(lambda t, y: field(y), y, t, method="rk4"), odeint(
            lambda t, y: field(y), y, t, method="dopri5"
        )

    return Calling(solve, field=field), {"y": torch.randn(2, 3), "t": torch.linspace(0, 1, 4)}


@program("torchsde: Euler of a diagonal noise")
def _torchsde() -> Built:
    sde = importlib.import_module("torchsde")

    class Field(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.spread = nn.Linear(3, 3), nn.Linear(3, 3)

        def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.drift(y)

        def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.spread(y).sigmoid()

    def solve(field: nn.Module, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        motion = sde.BrownianInterval(t0=0.0, t1=1.0, size=(2, 3), entropy=5)
        result: torch.Tensor = sde.sdeint(field, y, t, dt=0.25, method="euler", bm=motion)
        return result

    return Calling(solve, field=Field()), {"y": torch.randn(2, 3), "t": torch.linspace(0, 1, 3)}


# --------------------------------------------------------------------- graphs, operators, symmetry, tables, metrics


def _edges(count: int = 6) -> torch.Tensor:
    return torch.stack([torch.arange(count), (torch.arange(count) * 5 + 1) % count])


def _graph_network(name: str, path: str, *args: Any, **kwargs: Any) -> None:
    _module(name, path, lambda: {"x": torch.randn(6, 8), "edge_index": _edges()}, *args, **kwargs)


_graph_network("torch-geometric: GCN", "torch_geometric.nn.GCN", 8, 16, 2, 4, dropout=0.2)
_graph_network("torch-geometric: GAT", "torch_geometric.nn.GAT", 8, 16, 2, 4, heads=2)
_graph_network("torch-geometric: GraphSAGE", "torch_geometric.nn.GraphSAGE", 8, 16, 2, 4)
_module("neuraloperator: FNO", "neuralop.models.FNO", _pictures(1, 16), n_modes=(4, 4), in_channels=1, out_channels=1,
        hidden_channels=8, n_layers=2)  # fmt: skip
_module("neuraloperator: UNO", "neuralop.models.UNO", _pictures(1, 16), in_channels=1, out_channels=1, hidden_channels=8,
        n_layers=3, uno_out_channels=[8, 8, 8], uno_n_modes=[[4, 4]] * 3, uno_scalings=[[1.0, 1.0]] * 3,
        channel_mlp_skip="linear")  # fmt: skip


@program("e3nn: tensor product and gate")
def _e3nn() -> Built:
    o3 = importlib.import_module("e3nn.o3")
    product = o3.FullyConnectedTensorProduct("2x0e+1x1o", "1x0e+1x1o", "3x0e+1x1o")

    def convolve(product: nn.Module, x: torch.Tensor, r: torch.Tensor) -> Any:
        return product(x, o3.spherical_harmonics("1x0e+1x1o", r, normalize=True))

    return Calling(convolve, product=product), {"x": torch.randn(4, 5), "r": torch.randn(4, 3)}


_module("pytorch-tabnet: TabNet", "pytorch_tabnet.tab_network.TabNetNoEmbeddings", _floats(16, 6), 6, 2, n_d=4, n_a=4,
        n_steps=2, group_attention_matrix=torch.eye(6))  # fmt: skip


@program("torchmetrics: functional regression and classification")
def _torchmetrics() -> Built:
    metrics = importlib.import_module("torchmetrics.functional")

    def score(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits = x @ w
        return (
            metrics.mean_squared_error(logits, x[:, :3].contiguous()),
            metrics.pairwise_cosine_similarity(logits, x[:, :3].contiguous()),
            metrics.classification.multiclass_accuracy(logits, y, num_classes=3),
            metrics.image.total_variation(logits[None, None]),
        )

    return Calling(score, w=torch.randn(8, 3)), {"x": torch.randn(6, 8), "y": torch.randint(0, 3, (6,))}


def _wired(kind: str, length: int) -> Built:
    wiring = _of("ncps.wirings.AutoNCP")(12, 3, seed=1)
    return _of(f"ncps.torch.{kind}")(4, wiring), {"input": torch.randn(2, length, 4)}


PROGRAMS["ncps: closed-form continuous cells"] = lambda: _wired("CfC", 5)
PROGRAMS["ncps: liquid time constants"] = lambda: _wired("LTC", 3)


@program("entmax: sparsemax, entmax and bisection")
def _entmax() -> Built:
    entmax = importlib.import_module("entmax")

    def choose(w: torch.Tensor, x: torch.Tensor) -> Any:
        y = x @ w
        return entmax.sparsemax(y), entmax.entmax15(y), entmax.entmax_bisect(y, 1.3)

    return Calling(choose, w=torch.randn(6, 8)), {"x": torch.randn(4, 6)}


@program("entmax: losses")
def _entmax_losses() -> Built:
    entmax = importlib.import_module("entmax")

    def lose(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        return entmax.sparsemax_loss(x @ w, y), entmax.entmax15_loss(x @ w, y)

    return Calling(lose, w=torch.randn(6, 8)), {"x": torch.randn(4, 6), "y": torch.arange(4)}


@program("pytorch-metric-learning: losses of pairs and of classes")
def _metric_learning() -> Built:
    losses = importlib.import_module("pytorch_metric_learning.losses")

    def lose(pairs: Any, angles: Any, margins: Any, w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        return tuple(loss(x @ w, y) for loss in (pairs, angles, margins))

    parts = {
        "pairs": losses.NTXentLoss(),
        "angles": losses.ArcFaceLoss(4, 8),
        "margins": losses.ContrastiveLoss(),
    }
    return Calling(lose, **parts, w=torch.randn(6, 8)), {"x": torch.randn(8, 6), "y": torch.arange(8) % 4}


@program("tensordict: modules with named inputs")
def _tensordict() -> Built:
    named = _of("tensordict.nn.TensorDictModule")
    first = named(nn.Linear(4, 8), in_keys=["x"], out_keys=["hidden"])
    second = named(nn.Linear(8, 2), in_keys=["hidden"], out_keys=["y"])

    def run(steps: nn.Module, x: torch.Tensor) -> Any:
        found = steps(_of("tensordict.TensorDict")({"x": x}, batch_size=x.shape[0]))
        return found["y"], found["hidden"]

    steps = _of("tensordict.nn.TensorDictSequential")(first, second)
    return Calling(run, steps=steps), {"x": torch.randn(3, 4)}
