"""Every architecture that transformers lists, made small from its configuration by the names of its attributes."""

import copy
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.models import BATCH, RATE, Entry, Made, stub_torchvision

__all__ = ["transformers_entries"]

LENGTH, WORDS, WIDTH = 12, 64, 32
MAX_PARAMETERS = 120_000_000
HEADS = (
    "SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "VIDEO_CLASSIFICATION",
    "TIME_SERIES_PREDICTION", "SEMANTIC_SEGMENTATION", "CTC", "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM",
    "MASKED_LM", "OBJECT_DETECTION", "DEPTH_ESTIMATION", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM",
    "VISUAL_QUESTION_ANSWERING", "UNIVERSAL_SEGMENTATION", "PRETRAINING",
)  # fmt: skip
"""Tasks, the first that an architecture has is taken; where it has none, the model without a head."""

# An attribute whose name matches gets the value; the first that matches is taken, and lists get it for each entry.
SIZES: tuple[tuple[str, Any], ...] = (
    (r"vocab_size$|num_words|vocab_size_per_layer_input", WORDS),
    (r"(num|n)_(key_value|kv)_(heads|attention_heads)|num_key_value_heads", 2),
    (r"(num|n)_?.*heads?$|.*attention_heads$|^heads$|_heads$", 4),
    (r"head_dim$|head_size$|d_kv$|^d_head$|qk_nope_head_dim|v_head_dim|qk_rope_head_dim", 8),
    (r"layer_types|mlp_layer_types", None),
    (r"(num|n)_(hidden_)?layers?$|.*num_.*layers$|.*_layers$|^n_layer$|.*depth$|num_blocks$|.*num_hidden_layers$", 2),
    (r"intermediate_(size|dim)|.*ffn_dim|ffn_hidden_size|d_ff$|^d_inner$|n_inner|feed_forward.*size|dim_feedforward|mlp_dim"
     r"|moe_intermediate_size|.*ffn_size", WIDTH),
    (r"(num|n)_(local_|routed_)?experts$|num_local_experts", 4),
    (r"num_experts_per_tok|moe_topk|top_k$|moe_k$", 2),
    (r"hidden_size$|d_model$|embed_dim$|n_embd$|hidden_dim$|embedding_size$|projection_dim$|emb_dim$|text_dim|vision_dim"
     r"|^dim$|num_features$|output_dim$|out_hidden_size", WIDTH),
    (r"(q|kv)_lora_rank", 8),
    (r"max_position_embeddings|n_positions|max_source_positions|max_target_positions|n_ctx", 64),
)  # fmt: skip
LAYERS_ALONE = tuple(each for each in SIZES if each[1] == 2 and "layers" in each[0]) + SIZES[:1]
"""Where a smaller width does not fit together, widths stay what they are."""
NOISE = re.compile(r"drop|_pdrop|drop_path|stochastic_depth|survival", re.IGNORECASE)
PAIRS = re.compile("clip|siglip|align|flava|owl|blip|vilt|bridge|group|git|lxmert")
"""Models that want a text and an image."""
NO_NOISE = re.compile(r"mask_(time|feature)|droppable|drop_tokens|no_drop|apply_spec", re.IGNORECASE)


def transformers_entries() -> Iterator[Entry]:
    """One model of each architecture, at most one of each kind of configuration."""
    stub_torchvision()
    from transformers.models.auto import modeling_auto

    tables = [getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES", {}) for head in HEADS]
    tables.append(modeling_auto.MODEL_MAPPING_NAMES)
    packages: set[str] = set()
    for kind, package in configuration_packages():
        found = next((table[kind] for table in tables if kind in table), None)
        if found is not None and package not in packages:
            packages.add(package)
            name = found if isinstance(found, str) else found[0]
            yield Entry("transformers", kind, lambda kind=kind, name=name: make(kind, name))


def configuration_packages() -> Iterator[tuple[str, str]]:
    """Each kind of configuration, and the architecture's package that has it."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    for kind in CONFIG_MAPPING:
        yield kind, model_type_to_module_name(kind)


def make(kind: str, name: str) -> Made:
    """The model of one architecture, and the first inputs that it takes."""
    import transformers

    problems: list[str] = []
    for rules in (SIZES, LAYERS_ALONE):
        try:
            kind_of_config: Any = transformers.CONFIG_MAPPING[kind]
            series = "prediction_length" in inspect.signature(kind_of_config.__init__).parameters
            config = shrink(
                kind_of_config(prediction_length=8, context_length=16) if series else kind_of_config(), rules
            )
            count = 0
            with suppress(Exception), torch.device("meta"):
                count = sum(p.numel() for p in getattr(transformers, name)(copy.deepcopy(config)).parameters())
            if count > MAX_PARAMETERS:
                raise ValueError(f"{count:,} parameters")
            torch.manual_seed(0)
            with torch.random.fork_rng():
                model = getattr(transformers, name)(config).eval()
            return Made(model, inputs_of(model, problems))
        except Exception as error:  # whatever a configuration that does not fit together leads to
            problems.append(f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}")
    raise ValueError("; ".join(dict.fromkeys(problems))[:400])


# ------------------------------------------------------------------------------------------------------ configurations


def shrink(config: Any, rules: tuple[tuple[str, Any], ...]) -> Any:
    """Small sizes and every noise on, in a configuration and those that it holds."""
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrink(value, rules)
        elif NOISE.search(key) and not NO_NOISE.search(key) and not isinstance(value, bool):
            if value is None or (isinstance(value, int | float) and 0 <= value < RATE):
                put(config, key, RATE)
        elif key in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
            put(config, key, RATE)
        elif key.startswith("mask_") and key.endswith("_prob"):
            put(config, key, 0.0)  # examples of data are masked there, not units of a network
        else:
            size = next((size for pattern, size in rules if re.search(pattern, key)), None)
            if size is not None:
                put(config, key, smaller(key, value, size))
    layers = getattr(config, "num_hidden_layers", None)
    for key in ("layer_types", "mlp_layer_types", "layers_block_type", "block_types"):
        kinds = vars(config).get(key)
        if isinstance(kinds, list) and isinstance(layers, int):
            distinct = list(dict.fromkeys(kinds))
            put(config, key, (distinct + kinds)[:layers])
    for key in (
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "decoder_start_token_id",
        "sep_token_id",
        "cls_token_id",
    ):
        value = vars(config).get(key)
        if isinstance(value, int) and value >= WORDS:
            put(config, key, 1)
    put(config, "initializer_range", 0.2)  # of so few units, weights of .02 would let every signal die out
    if getattr(config, "pad_token_id", 0) is None:
        put(config, "pad_token_id", 0)
    return config


def put(config: Any, key: str, value: Any) -> None:
    try:
        setattr(config, key, value)
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        vars(config)[key] = value


def smaller(key: str, value: Any, size: int) -> Any:
    if value is None and key == "vocab_size":
        return size
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return min(value, size)
    if isinstance(value, list | tuple) and all(isinstance(each, int) for each in value):
        each_layer = re.search("dims?$|sizes?$|channels$", key) is not None
        kept = value if each_layer else [min(each, 1 if "depth" in key else 2) for each in value]
        return type(value)(kept)
    return value


# --------------------------------------------------------------------------------------------------------------- inputs


def first(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these attributes that a configuration, or one inside of it, has."""
    inside = [value for value in vars(config).values() if hasattr(value, "model_type")]
    for each in (config, *inside):
        for name in names:
            if (value := getattr(each, name, None)) is not None:
                return value
    return default


def candidates(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Inputs that a model may take, the likeliest first."""
    config: Any = model.config
    generator = torch.Generator().manual_seed(2)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    main = getattr(model, "main_input_name", "input_ids")
    names = inspect.signature(model.forward).parameters
    text = {"input_ids": torch.randint(3, WORDS - 2, (BATCH, LENGTH), generator=generator)}
    if isinstance(end := first(config, "eos_token_id"), int) and end < WORDS:
        text["input_ids"][:, -1] = end
    if "decoder_input_ids" in names:
        text["decoder_input_ids"] = torch.randint(3, WORDS - 2, (BATCH, LENGTH), generator=generator)
    targets = {key: value for key, value in text.items() if key != "input_ids"}
    size = first(config, "image_size", "img_size", "input_size", default=64)
    sides = list(size)[-2:] if isinstance(size, list | tuple) else [size, size]
    if isinstance(size, dict):
        sides = [size.get("height", 64), size.get("width", 64)]
    channels = first(config, "num_channels", "in_channels", "in_chans", default=3)
    channels = channels if isinstance(channels, int) else 3
    frames = first(config, "num_frames", default=2)
    mel = first(
        config, "num_mel_bins", "feature_size", "input_feat_per_channel", "feature_projection_input_dim", default=80
    )
    positions = first(config, "max_source_positions", default=64)
    rows = {main: noise(BATCH, first(config, "max_length", default=64), mel)}
    series = first(config, "context_length", default=32)
    entries = first(config, "num_input_channels", "input_size", default=1)
    if "past_values" in names:
        lags = max(first(config, "lags_sequence", default=[0]) or [0])
        past, future = noise(BATCH, series + lags), noise(BATCH, first(config, "prediction_length", default=8) or 8)
        count = first(config, "num_time_features", default=0)
        yield {"past_values": noise(BATCH, series, entries if isinstance(entries, int) else 1)}
        yield {
            "past_values": past, "past_observed_mask": torch.ones_like(past), "future_values": future,
            "past_time_features": noise(*past.shape, count), "future_time_features": noise(*future.shape, count),
        }  # fmt: skip
    images = [{"pixel_values": noise(BATCH, channels, *each)} for each in (sides, [64, 64], [224, 224])]
    clips = noise(BATCH, frames, channels, *sides)
    videos = [{"pixel_values": clips}, {"pixel_values_videos": clips}]
    waves = [{"input_values": noise(BATCH, length)} for length in (2000, 16000)]
    waves += [{"input_values": noise(BATCH, 1, 4000)}]
    features = [
        {"input_features": noise(BATCH, mel, positions * 2)}, {"input_features": noise(BATCH, 64, mel)},
        {"input_features": noise(BATCH, 1, 64, mel)},
    ]  # fmt: skip
    by_main = {
        "input_ids": [text], "pixel_values": [*images, *videos], "pixel_values_videos": videos, "input_values": [*waves, rows],
        "input_features": features,
    }  # fmt: skip
    kinds = [*by_main.get(main, []), *(each for group in by_main.values() for each in group)]
    needed = {
        name for name, each in names.items() if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    }
    if {"input_ids", "pixel_values"} <= names.keys() and ("pixel_values" in needed or PAIRS.search(config.model_type)):
        kinds = [{"input_ids": text["input_ids"]} | image for image in images] + kinds
    fitting = [
        each | (targets if "input_ids" not in each else {})
        for each in kinds
        if set(each) <= names.keys() or "args" in names or "kwargs" in names
    ]
    yield from fitting
    if others := {key: each for key, each in others_of(config, noise, text["input_ids"]).items() if key in names}:
        for each in fitting:
            yield others | each


def others_of(config: Any, noise: Callable[..., Tensor], ids: Tensor) -> dict[str, Tensor]:
    """What single architectures want beside the usual inputs, by its name."""
    wide = first(config, "visual_feat_dim", default=16)
    patch = first(config, "patch_embed_hidden_size", "patch_size", default=16)
    patch = patch if isinstance(patch, int) else 16
    pixels = noise(BATCH, 3, 64, 64)
    return {
        "bbox": torch.zeros(BATCH, LENGTH, 8 if config.model_type == "bros" else 4, dtype=torch.long),
        "visual_feats": noise(BATCH, 5, wide), "visual_pos": noise(BATCH, 5, 4), "qformer_input_ids": ids,
        "flattened_patches": torch.cat([torch.ones(BATCH, 9, 2), noise(BATCH, 9, patch * patch * 3)], -1),
        "decoder_input_ids": ids, "pixel_values": pixels, "input_ids": ids,
        "mm_token_type_ids": torch.zeros_like(ids), "token_type_ids": torch.zeros_like(ids),
        "states": noise(BATCH, LENGTH, first(config, "state_dim", default=17)), "returns_to_go": noise(BATCH, LENGTH, 1),
        "actions": noise(BATCH, LENGTH, first(config, "act_dim", default=4)), "timesteps": ids,
        "rewards": noise(BATCH, LENGTH, 1),
    }  # fmt: skip


def inputs_of(model: nn.Module, problems: list[str]) -> dict[str, Tensor]:
    """The first inputs that a model takes in both modes."""
    for inputs in candidates(model):
        try:
            with torch.no_grad(), torch.random.fork_rng():
                model.eval()(**inputs)
            return inputs
        except Exception as error:
            problems.append(f"{'+'.join(inputs)}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}")
    raise ValueError("no inputs that it takes")
