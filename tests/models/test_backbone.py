"""Tests of backbones: they give the right map, frozen ones never change, and weights come from every source."""

import errno
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_models import ENCODER, small_vision_transformer
from torch import nn

from seqtool.errors import InputError
from seqtool.models import pretrained
from seqtool.models.backbone import Backbone, EncoderSettings, augment, backbone_fingerprint, make_backbone, mirror
from seqtool.models.pretrained import Cut
from seqtool.runtime import network

SMALL = EncoderSettings(**ENCODER)
VGG = replace(SMALL, backbone="torchvision/vgg19", layer="features.35", size=224)
RESNET = replace(SMALL, backbone="torchvision/resnet18", size=64)
CROPS = {"fine_tune_from": 0, "augment": True, "crop": 0.8, "crop_size": 8}
LITE = replace(SMALL, backbone="timm/tf_efficientnet_lite0", layer="3", size=224)


def random_pixels(count: int, size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def make(settings: EncoderSettings, *, pretrained: bool = True) -> Backbone:
    return make_backbone(settings, pretrained=pretrained)


def test_the_small_backbone_has_an_8_by_8_grid() -> None:
    backbone = make(replace(SMALL, size=64))
    assert backbone.locations == (8, 8) and backbone(random_pixels(2, 64)).shape == (2, 64, backbone.dimension)


def test_a_cell_of_the_small_backbone_sees_25_pixels_and_its_position() -> None:
    """Cells are in reading order, and pixels farther away change nothing."""
    backbone = make(replace(SMALL, size=64))
    image = random_pixels(1, 64)
    changed = image.clone()
    changed[:, :, 8, 56] = 255 - changed[:, :, 8, 56]  # row 1, column 7 of the grid
    differs = (backbone(image) - backbone(changed)).abs().sum(-1).view(8, 8) > 0
    rows, columns = differs.nonzero().T
    assert differs[1, 7] and int(rows.max()) == 2 and int(columns.min()) == 6
    grey = torch.full((1, 3, 64, 64), 128, dtype=torch.uint8)
    inner = backbone(grey).view(8, 8, -1)[2:6, 2:6].flatten(0, 1)
    assert torch.cdist(inner, inner).fill_diagonal_(1.0).min() > 1e-4, "equal content differs at other positions"


def test_the_layer_of_vgg_is_conv5_4_after_relu() -> None:
    """The paper uses vgg19().features[:36], which gives 14×14×512 for 224×224 pixels."""
    import torchvision

    backbone = make(VGG)
    assert backbone.locations == (14, 14) and backbone.dimension == 512
    with torch.random.fork_rng():
        torch.manual_seed(0)  # gives the random weights of a frozen backbone
        vgg = torchvision.models.vgg19(weights=None).eval()
    image = random_pixels(1, 224)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    with torch.no_grad():
        expected = vgg.features[:36]((image / 255 - mean) / std)
    assert torch.allclose(backbone(image), expected.flatten(2).transpose(1, 2), atol=1e-4)
    parameter_count = sum(parameter.numel() for parameter in backbone.parameters())
    assert parameter_count == sum(parameter.numel() for parameter in vgg.features[:36].parameters())
    assert not any("classifier" in name for name in backbone.state_dict())


def test_the_default_layer_of_resnet_is_its_last_map() -> None:
    backbone = make(RESNET)
    assert backbone.locations == (2, 2) and backbone.dimension == 512
    assert make(replace(RESNET, layer="layer3")).locations == (4, 4)
    assert not any(name.startswith("network.fc") for name in backbone.state_dict())


def test_a_vision_transformer_gives_its_patches_as_a_map_or_its_class_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches are in reading order; the class token, the last layer's or an earlier one's, is what the head reads."""
    vit = small_vision_transformer(monkeypatch).eval()
    vit_settings = replace(SMALL, backbone="torchvision/vit_b_16", size=32)
    backbone = make(vit_settings)
    assert backbone.locations == (4, 4) and backbone.dimension == 16
    assert set(backbone.network.state_dict()) == {name for name in vit.state_dict() if not name.startswith("heads")}
    image = random_pixels(2, 32)
    normalised = (image - backbone.mean) / backbone.std
    with torch.no_grad():
        tokens = vit.encoder(torch.cat([vit.class_token.expand(2, -1, -1), vit._process_input(normalised)], 1))
        assert torch.allclose(backbone(image), tokens[:, 1:], atol=1e-5)
        class_token = make(replace(vit_settings, layer="class_token"))
        assert class_token.locations == (1, 1) and torch.allclose(class_token(image), tokens[:, :1], atol=1e-5)
        logits = make(replace(vit_settings, layer="heads"))(image)
        assert torch.allclose(logits[:, 0], vit.heads(class_token(image)[:, 0]), atol=1e-5)
    for layer in ("encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_0.self_attention"):
        assert make(replace(vit_settings, layer=layer)).locations == (4, 4)
    only = "it reads only 32×32 pixels"
    with pytest.raises(
        InputError, match=rf"/vit_b_16 cannot read images of 64×64 pixels \(model\.encoder\.size\): {only}"
    ):
        make(replace(vit_settings, size=64))
    with pytest.raises(InputError, match=rf"images of 8×8 pixels \(model\.encoder\.crop_size\): {only}"):
        make(replace(vit_settings, **CROPS))


@pytest.mark.parametrize(("layer", "locations", "dimension"), [("3", 14, 112), ("4", 7, 320), (None, 7, 1280)])
def test_timm_reads_weights_from_a_file(shared: Path, layer: str | None, locations: int, dimension: int) -> None:
    timm = pytest.importorskip("timm")
    weights = str(shared / "weights" / "tf_efficientnet_lite0.safetensors")
    backbone = make(replace(LITE, layer=layer, weights=weights))
    assert backbone.locations == (locations, locations) and backbone.dimension == dimension
    overlay = {"pretrained": True, "pretrained_cfg_overlay": {"file": weights}}
    image = random_pixels(2, 224, seed=1)
    with torch.no_grad():
        if layer is None:
            expected = timm.create_model("tf_efficientnet_lite0", **overlay).eval().forward_features(image / 127.5 - 1)
        else:
            part = {"features_only": True, "out_indices": (int(layer),)}
            expected = timm.create_model("tf_efficientnet_lite0", **part, **overlay).eval()(image / 127.5 - 1)[0]
    assert torch.allclose(backbone(image), expected.flatten(2).transpose(1, 2), atol=1e-3, rtol=1e-3)
    blocks = {name.split(".")[1:3][-1] for name in backbone.state_dict() if name.startswith("network.blocks")}
    assert blocks == ({"0", "1", "2", "3", "4"} if layer == "3" else {"0", "1", "2", "3", "4", "5", "6"})
    assert any("conv_head" in name for name in backbone.state_dict()) == (layer is None)


@pytest.mark.parametrize("fine_tune_from", [None, 0])
def test_running_statistics_never_change(fine_tune_from: int | None) -> None:
    torch.manual_seed(0)
    backbone = make(replace(RESNET, fine_tune_from=fine_tune_from)).train()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    assert not any(module.training for module in backbone.modules() if isinstance(module, nn.BatchNorm2d))
    annotations = backbone(random_pixels(2, 64))
    assert annotations.requires_grad == (fine_tune_from is not None)
    if fine_tune_from is not None:
        annotations.square().mean().backward()
        torch.optim.SGD(backbone.parameters(), lr=1e-3).step()
    after = backbone.state_dict()
    trained = {name for name, _ in backbone.named_parameters()} if fine_tune_from is not None else set()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == trained
    annotations = backbone(random_pixels(2, 64))
    assert annotations.isfinite().all() and torch.equal(annotations, backbone.eval()(random_pixels(2, 64)))


def test_a_frozen_random_backbone_is_the_same_every_time() -> None:
    """Its cached vectors stay valid; a backbone that is trained starts from the seed of the run."""
    torch.manual_seed(5)
    weights = make(SMALL).state_dict()
    random_number = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), random_number), "the random numbers of the run are not used up"
    assert all(torch.equal(tensor, weights[name]) for name, tensor in make(SMALL).state_dict().items())
    trained = [make(replace(SMALL, fine_tune_from=0)).state_dict() for _ in range(2)]
    assert not torch.equal(trained[0]["network.place.weight"], trained[1]["network.place.weight"])


def test_making_a_backbone_leaves_the_random_numbers_of_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """These random numbers belong to the run, or to the program that loads a model."""
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    before = torch.get_rng_state()
    make(SMALL)
    assert not seeds and torch.equal(torch.get_rng_state(), before)


def test_augmentation_moves_and_tints_and_is_not_the_backbones() -> None:
    backbone = make(replace(SMALL, size=64, fine_tune_from=0, augment=True)).train()
    assert torch.equal(backbone(random_pixels(3, 64)), backbone(random_pixels(3, 64))), "only captioners augment"
    ramp = torch.arange(64.0).expand(8, 3, 64, 64)
    moved = augment(ramp)
    assert moved.shape == ramp.shape and (moved[:, :, :, 1:] >= moved[:, :, :, :-1]).all(), "never mirrored"
    assert not torch.equal(moved[0], moved[1])
    frozen = make(SMALL).train()
    assert torch.equal(frozen(random_pixels(1, 24)), frozen(random_pixels(1, 24)))


def test_some_of_the_pictures_that_may_be_mirrored_are_mirrored() -> None:
    ramps, may_mirror = torch.arange(9, dtype=torch.uint8).expand(80, 3, 5, 9), torch.arange(80) < 60
    is_mirrored = [torch.equal(picture, ramps[0].flip(2)) for picture in mirror(ramps, may_mirror)]
    assert 15 <= sum(is_mirrored) <= 45 and not any(is_mirrored[60:])
    assert sum(torch.equal(picture, ramps[0]) for picture in mirror(ramps, may_mirror)) > 20


def test_crops_keep_shares_of_the_sides_from_the_least_to_all_and_lie_anywhere() -> None:
    """A crop of a ramp is a ramp: its slope is the share that was kept, and its middle the crop's place."""
    x, y = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="xy")
    ramps = 60 + torch.stack([x, y, (x + y) / 2]).expand(400, 3, 64, 64)
    inner = augment(ramps, crop=0.5)[:, :, 16:48, 16:48]
    brightness_and_contrast = inner[:, 2].mean((1, 2)), inner[:, :2].mean((1, 2, 3))
    assert torch.allclose(*brightness_and_contrast, atol=0.01), "the same in all channels"
    across, down = inner[:, 0].diff(dim=2).mean((1, 2)), inner[:, 1].diff(dim=1).mean((1, 2))
    assert torch.allclose(across, down, atol=1e-3), "no picture is stretched"
    assert 0.5 * 0.85**2 - 1e-3 < across.min() < 0.5 and 0.9 < across.max() < 1.15**2 + 1e-3
    offsets = (inner[:, 0] - inner[:, 1]).mean((1, 2))
    assert offsets.min() < -15 and offsets.max() > 15 and abs(offsets.mean()) < 2
    whole = augment(torch.full((3, 3, 8, 8), 100.0), crop=0.5)
    assert torch.allclose(whole, whole[:, :1, :1, :1].expand_as(whole)), "nothing comes from outside a picture"


def test_crops_of_bf16_training_have_the_pixels_of_fp32() -> None:
    """In bf16 the places of pixels would be rounded to multiples of almost half a pixel."""
    x, y = torch.meshgrid(torch.arange(224.0), torch.arange(224.0), indexing="xy")
    crops = []
    for enabled in (False, True):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            crops.append(augment(torch.stack([x, y, y])[None], crop=0.5, size=160))
    assert torch.equal(*crops)


def test_crops_may_have_fewer_pixels_than_pictures() -> None:
    x, y = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="xy")
    small = augment(60 + torch.stack([x, y, y]).expand(50, 3, 64, 64), crop=0.5, size=32)
    assert small.shape == (50, 3, 32, 32)
    across = small[:, 0, :, 8:24].diff(dim=2).mean((1, 2))
    assert 0.85**2 - 1e-3 < across.min() < 1.1 and 1.7 < across.max() < 2 * 1.15**2 + 1e-3, "64 pixels become 32"
    with pytest.raises(InputError, match=r"crop_size means nothing with crop=1, which does not crop: set crop=0\.8"):
        replace(SMALL, fine_tune_from=0, augment=True, crop_size=16).check()


def test_crops_and_mirroring_need_augmentation() -> None:
    with pytest.raises(InputError, match=r"crop and mirror_unless mean nothing without model\.encoder\.augment=true"):
        replace(SMALL, crop=0.8).check()


def test_named_modules_of_a_trained_encoder_are_frozen() -> None:
    partly = replace(RESNET, fine_tune_from=0, freeze=["conv1", "layer1", "layer2.0.conv1"])
    trained = {name for name, parameter in make(partly).named_parameters() if parameter.requires_grad}
    everything = {name for name, _ in make(partly).named_parameters()}
    frozen = {name for name in everything if name.split(".")[1] in ("conv1", "layer1")}
    assert everything - trained == frozen | {"network.layer2.0.conv1.weight"}
    with pytest.raises(
        InputError, match=r"did you mean 'layer1'\? model\.encoder\.freeze takes modules .* such as conv1"
    ):
        make(replace(partly, freeze="layer_1"))
    with pytest.raises(InputError, match=r"takes modules of the encoder, such as layers, place\."):
        make(replace(SMALL, fine_tune_from=0, freeze="xyz"))
    with pytest.raises(InputError, match="freeze means nothing with fine_tune_from=null"):
        replace(RESNET, fine_tune_from=None, freeze="conv1").check()


def test_weights_are_read_from_a_file(tmp_path: Path) -> None:
    source = make(replace(RESNET, fine_tune_from=0))
    full = {name.removeprefix("network."): tensor for name, tensor in source.state_dict().items() if "." in name}
    torch.save({"state_dict": {**full, "fc.weight": torch.zeros(3)}}, tmp_path / "resnet.pt")
    save_file(full, tmp_path / "resnet.safetensors")
    in_a_model = {f"backbone.{name}": tensor for name, tensor in source.state_dict().items()}
    save_file(in_a_model, tmp_path / "model.safetensors")
    for name in ("resnet.pt", "resnet.safetensors", "model.safetensors"):
        loaded = make(replace(RESNET, weights=str(tmp_path / name)))
        assert torch.equal(loaded(random_pixels(1, 64)), source.eval()(random_pixels(1, 64)))
    unread = make(replace(RESNET, weights=str(tmp_path / "resnet.pt")), pretrained=False)
    assert not torch.equal(unread(random_pixels(1, 64)), source(random_pixels(1, 64))), "a checkpoint has the weights"


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    full = {name.removeprefix("network."): tensor for name, tensor in make(RESNET).state_dict().items() if "." in name}
    file = tmp_path / "weights.safetensors"
    settings = replace(RESNET, weights=str(file))

    def message() -> str:
        with pytest.raises(InputError) as error:
            make(settings)
        return str(error.value)

    assert message() == f"{file} does not exist: set model.encoder.weights to a file of weights, 'default' or null."
    file.write_bytes(b"no tensors")
    unreadable = "cannot be read as weights: model.encoder.weights takes a .safetensors file or a torch state dict."
    assert message() == f"{file} {unreadable}"
    save_file({name: tensor for name, tensor in full.items() if "layer4.1" not in name}, file)
    assert message() == (
        f"{file} does not fit torchvision/resnet18: layer4.1.conv1.weight and 9 more of 120 tensors are missing."
    )
    save_file({**full, "conv1.weight": torch.zeros(64, 1, 7, 7)}, file)
    assert message() == f"{file} does not fit torchvision/resnet18: conv1.weight has shape 64×1×7×7, not 64×3×7×7."
    settings = replace(RESNET, weights=str(tmp_path / "weights.pt"))
    (tmp_path / "weights.pt").write_bytes(b"no tensors")
    assert message() == f"{tmp_path / 'weights.pt'} {unreadable}"
    torch.save([1, 2], tmp_path / "weights.pt")
    expected = "holds no state dict: model.encoder.weights takes a file that maps names to tensors."
    assert message() == f"{tmp_path / 'weights.pt'} {expected}"


def test_unavailable_default_weights_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error comes at once, although each library would retry for so long that it seems to hang."""
    from huggingface_hub import constants

    attempts: list[Any] = []

    def refuse_connection(self: socket.socket, address: Any) -> None:
        attempts.append(address)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *_, **__: [(2, 1, 6, "", ("127.0.0.1", port))])
    monkeypatch.setattr(socket.socket, "connect", refuse_connection)
    monkeypatch.setattr(time, "sleep", lambda seconds: attempts.append(seconds))
    hub = tmp_path / "hub"
    resnet, lite = hub / "checkpoints" / "resnet18-f37072fd.pth", hub / "models--timm--tf_efficientnet_lite0.in1k"
    address = "https://huggingface.co/timm/tf_efficientnet_lite0.in1k/resolve/main/model.safetensors"
    for settings, file, path, link in [
        (RESNET, resnet.name, resnet, f"https://download.pytorch.org/models/{resnet.name}"),
        (LITE, "model.safetensors", lite, address),
    ]:
        attempts.clear()
        with pytest.raises(InputError) as error:
            make(replace(settings, weights="default"))
        assert str(error.value) == (
            f"The default weights of {settings.backbone}, {file}, are not in {path.parent} and cannot be downloaded "
            f"from {link} (Connection refused): set model.encoder.weights=FILE to a file of weights, or copy {path} "
            "from a machine with internet access."
        )
        assert len(attempts) == 1
    make(replace(RESNET, weights="default"), pretrained=False)


def test_downloaded_default_weights_need_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torchvision.models import resnet18

    def fail_to_connect(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"connects to {address}")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.manual_seed(3)
    resnet = resnet18(weights=None)
    torch.save(resnet.state_dict(), tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth")
    monkeypatch.setattr(socket.socket, "connect", fail_to_connect)
    backbone = make(replace(RESNET, weights="default"))
    assert torch.equal(backbone.state_dict()["network.conv1.weight"], resnet.conv1.weight)


@pytest.mark.filterwarnings("ignore:The default weight init:FutureWarning")
@pytest.mark.parametrize(("name", "size"), [("inception_v3", 128), ("vit_h_14", 518)])
def test_the_network_is_the_same_with_downloaded_weights_and_a_checkpoints(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision changes the network of some names when it loads default weights."""
    from torchvision.models._api import WeightsEnum

    monkeypatch.setattr(pretrained, "default_weights", lambda _: None)
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *_, **__: {})
    monkeypatch.setattr(nn.Module, "load_state_dict", lambda *_, **__: None)
    with torch.device("meta"):
        options = pretrained.OPTIONS[f"torchvision/{name}"]
        downloaded, stored = (
            pretrained.cut_backbone(f"torchvision/{name}", None, download=download, **options)
            for download in (True, False)
        )
        assert downloaded.network.code == stored.network.code
        x = torch.zeros(1, 3, size, size)
        assert downloaded.read(downloaded.network, x).shape == stored.read(stored.network, x).shape
    settings = replace(SMALL, backbone=f"torchvision/{name}")
    codes = [backbone_fingerprint(replace(settings, weights=weights), str)["code"] for weights in ("default", "a.pth")]
    assert str(options) in codes[0] and str(options) not in codes[1]


def test_cached_weights_of_the_hub_are_used_at_once_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import timm
    from huggingface_hub import constants

    def refuse_connection(self: socket.socket, address: Any) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    pauses: list[float] = []
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *_, **__: [(2, 1, 6, "", ("127.0.0.1", port))])
    monkeypatch.setattr(socket.socket, "connect", refuse_connection)
    monkeypatch.setattr(time, "sleep", pauses.append)
    efficientnet = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    repository = tmp_path / "models--timm--tf_efficientnet_lite0.in1k"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123abcd")
    (repository / "snapshots" / "0123abcd").mkdir(parents=True)
    save_file(efficientnet.state_dict(), repository / "snapshots" / "0123abcd" / "model.safetensors")
    backbone = make(replace(LITE, weights="default"))
    assert torch.equal(backbone.state_dict()["network.conv_stem.weight"], efficientnet.conv_stem.weight)
    assert pauses == []


def test_a_backbone_without_default_weights_is_refused() -> None:
    with pytest.raises(InputError) as error:
        make(replace(LITE, backbone="timm/botnet50ts_256", layer=None, size=256, weights="default"))
    assert str(error.value).startswith("timm/botnet50ts_256 cannot be made (No pretrained weights exist for ")
    assert str(error.value).endswith("or set model.encoder.weights to a file, or to null.")


def test_a_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server accepts the connection and sends nothing."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(network, "PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"http://127.0.0.1:{server.getsockname()[1]}/weights.pth"
        weights = SimpleNamespace(DEFAULT=SimpleNamespace(url=silent))
        monkeypatch.setattr("torchvision.models.get_model_weights", lambda name: weights)
        started = time.monotonic()
        with pytest.raises(InputError, match=r"\((no answer within 0.2 seconds|timed out)\): set "):
            make(replace(RESNET, weights="default"))
    assert time.monotonic() - started < 20  # without the limit the download would never end


def test_missing_and_broken_libraries_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match=r"^This backbone needs timm: pip install 'seqtool\[timm\]'\.$"):
        make(LITE)

    def fail_to_import(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(pretrained, "import_module", fail_to_import)
    with pytest.raises(InputError) as error:
        make(RESNET)
    assert str(error.value) == (
        f"torchvision cannot be imported with torch {torch.__version__} (operator torchvision::nms does not exist): "
        "install the torchvision that belongs to this torch, or the newest of both with "
        "pip install -U torch torchvision."
    )


def test_unknown_names_and_too_small_sizes_are_refused() -> None:
    cases = {
        "Unknown torchvision backbone 'resnet81'; did you mean 'resnet18'?": {"backbone": "torchvision/resnet81"},
        "Unknown layer of resnet18 'layr4'; did you mean 'layer4'?": {"layer": "layr4"},
        "Set model.encoder.layer: seqtool does not know which layer of shufflenet_v2_x0_5 makes the last map.": {
            "backbone": "torchvision/shufflenet_v2_x0_5"
        },
        "Unknown timm backbone 'tf_efficientnet_lite9'; did you mean 'tf_efficientnet_lite0'?": {
            "backbone": "timm/tf_efficientnet_lite9"
        },
        "timm/resnet18 has no layer 9: list index out of range.": {"backbone": "timm/resnet18", "layer": "9"},
    }
    for message, settings in cases.items():
        if str(settings.get("backbone")).startswith("timm"):
            pytest.importorskip("timm")
        with pytest.raises(InputError) as error:
            make(replace(RESNET, **settings))
        assert str(error.value) == message
    too_small = {"size": replace(VGG, size=8, layer=None), "crop_size": replace(VGG, size=32, layer=None, **CROPS)}
    for setting, settings in too_small.items():
        reason = rf"\(model\.encoder\.{setting}\): .*too small"
        with pytest.raises(InputError, match=rf"^torchvision/vgg19 cannot read images of 8×8 pixels {reason}"):
            make(settings)


def test_a_vector_is_a_map_of_one_location() -> None:
    """A classifier's last layer gives a vector; outputs of other shapes are refused."""
    backbone = make(replace(RESNET, layer="fc"))
    assert backbone.locations == (1, 1) and backbone.dimension == 1000
    normalised = (random_pixels(2, 64).float() - backbone.mean) / backbone.std
    vectors = backbone.read(backbone.network, normalised.contiguous(memory_format=torch.channels_last))
    assert torch.equal(backbone(random_pixels(2, 64)), vectors[:, None])
    unsupported = Cut(nn.Flatten(2), lambda network, x: network(x), mean=(0.5,) * 3, std=(0.25,) * 3)
    with pytest.raises(InputError) as error:
        Backbone(unsupported, SMALL)
    assert str(error.value) == (
        "model.encoder.layer=null of small has an output of shape 1×3×576, which is neither a map of channels, rows "
        "and columns nor a vector: choose another layer."
    )


def test_unusable_settings_are_reported_together() -> None:
    wrong = replace(SMALL, backbone="vgg19", fit="stretch", size=4, fine_tune_from=-1, lr=0.0)
    with pytest.raises(InputError) as error:
        wrong.check()
    assert str(error.value) == (
        "Unknown model.encoder.backbone 'vgg19'; choose from small, torchvision/NAME, timm/NAME. "
        "Unknown model.encoder.fit 'stretch'; choose from crop, squash. "
        "model.encoder.size must be at least 8 pixels, not 4. "
        "model.encoder.fine_tune_from must be at least 0, not -1. model.encoder.lr must be above 0, not 0.0."
    )
    with pytest.raises(
        InputError, match=r"layer must be null for the backbone small, not 'x'\. .*weights=default is for"
    ):
        replace(SMALL, layer="x", weights="default").check()
    with pytest.raises(
        InputError, match=r"^model.encoder.layer must be an out index such as 3 for timm, not 'blocks'\.$"
    ):
        replace(LITE, layer="blocks").check()


def test_the_fingerprint_covers_what_annotations_depend_on(tmp_path: Path) -> None:
    def digest(file: Path) -> str:
        return f"digest of {file.name}"

    base = replace(RESNET, weights="a/w.pt")
    fingerprint = backbone_fingerprint(base, digest)
    assert fingerprint["weights"] == "digest of w.pt" and fingerprint["random"] is None
    moved = backbone_fingerprint(replace(RESNET, weights="b/w.pt"), digest)
    assert moved == fingerprint, "equal content in another file"
    for changed in ({"layer": "layer3"}, {"size": 96}, {"fit": "crop"}, {"weights": None}, {"weights": "default"}):
        assert backbone_fingerprint(replace(base, **changed), digest) != fingerprint
    assert backbone_fingerprint(replace(base, lr=1.0), digest) == fingerprint


def test_a_frozen_backbone_computes_in_full_precision() -> None:
    """Neither autocast nor a GPU's TF32 rounds the stored vectors, and both are restored afterwards."""
    backbone, inner_flags = make(SMALL), []
    backbone.network.register_forward_hook(lambda *_: inner_flags.append(precision_flags()))

    def precision_flags() -> tuple[bool, bool, bool]:
        return (
            torch.is_autocast_enabled("cpu"),
            torch.backends.cudnn.allow_tf32,
            torch.backends.cuda.matmul.allow_tf32,
        )

    with torch.autocast("cpu", dtype=torch.bfloat16):
        outer_flags = precision_flags()
        backbone(random_pixels(1, 24))
        assert precision_flags() == outer_flags
    assert inner_flags == [(False, False, False)]
