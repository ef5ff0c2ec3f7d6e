"""What a recipe would do here: sizes, disk, memory and time, before anything is computed or downloaded.

Sizes are exact, from models without weights. Tokens are upper bounds. Times are rough: operations divided by the speed of a matrix
product timed here. It opens configurations only.
"""

# P parameters, D hidden, V vocabulary

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils.logging import get_logger

from dspark_hf.models import DSparkConfig, DSparkDrafter
from dspark_hf.training.losses import chunk_size
from dspark_hf.training.new_drafter import FROZEN, drafter_config
from dspark_hf.training.precision import matmul_speed, usable_dtype
from dspark_hf.training.recipe import Recipe

from .gguf import gguf_config
from .known_targets import known_config
from .prompts import BUILTIN, load_prompts
from .target import checked_location, target_config, this_device


logger = get_logger(__name__)

GIB = 2**30
# weights, gradient and two Adam moments in float32
TRAINING_BYTES = 16
CHECKPOINT_BYTES = 12
# what figures are for where the rows are not counted
ASSUMED_ROWS = 1_000_000
# decoding reaches about a third of the speed of large matrix products, training about half
DECODING_EFFICIENCY, TRAINING_EFFICIENCY = 0.3, 0.5


@dataclass(frozen=True)
class Estimate:
    """
    Attributes:
        target, drafter (`dict`): sizes.
        data (`dict`): rows, `None` where only the run will know, and the number that all figures are for.
        disk_gib, memory_gib (`dict`): by what takes it; `free` and `installed` are this machine's.
        minutes (`dict`): by stage.
        stages (`list[str]`): what the run would do.
        folder (`str`): of the run.
    """

    target: dict[str, Any]
    drafter: dict[str, Any]
    data: dict[str, Any]
    disk_gib: dict[str, float]
    memory_gib: dict[str, float]
    minutes: dict[str, float]
    stages: list[str]
    folder: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """For people."""
        blocks = []
        for title, values in (
            ("target", self.target),
            ("drafter", self.drafter),
            ("data", self.data),
            ("disk, GiB", self.disk_gib),
            ("memory, GiB", self.memory_gib),
            ("minutes, rough", self.minutes),
        ):
            blocks.append(title)
            blocks += [f"  {name.replace('_', ' '):<28} {_shown(value)}" for name, value in values.items()]
        blocks.append("would do")
        blocks += [f"  {number}. {stage}" for number, stage in enumerate(self.stages, start=1)]
        return "\n".join([*blocks, f"in {self.folder}"])


def estimate(recipe: Recipe, folder: str | Path) -> Estimate:
    """
    Args:
        recipe ([`Recipe`]): all settings.
        folder (`str` or `Path`): of the run; only its free space is looked at.

    Raises:
        ValueError: a setting that the target cannot have, such as its last layer; OSError: no such target.
    """
    target = target_without_weights(recipe)
    config = planned_config(recipe, target)
    with torch.device("meta"):
        drafter = DSparkDrafter(config)
    total = sum(weight.numel() for weight in drafter.parameters())
    frozen = sum(weight.numel() for name, weight in drafter.named_parameters() if name.split(".")[0] in FROZEN)
    data = _data(recipe)
    parameters = sum(weight.numel() for weight in target.parameters())
    dtype = usable_dtype(recipe.target.dtype, target.config.dtype, this_device())
    text = target.config.get_text_config()
    return Estimate(
        target={
            "name": recipe.target.name_or_path or recipe.target.gguf or "toy",
            "parameters": parameters,
            "layers": text.num_hidden_layers,
            "hidden_size": text.hidden_size,
            "vocabulary": config.vocab_size,
            "dtype": str(dtype).removeprefix("torch."),
        },
        drafter={
            "parameters": total,
            "trained": total - frozen,
            "layers": config.num_hidden_layers,
            "slots": config.num_slots,
            "target_layers": config.target_layer_ids,
            "mask_token": recipe.drafter.mask_token_id or "one that the tokenizer does not use",
            "markov": f"{config.markov_head_type}, rank {config.markov_rank}" if config.markov_rank else "none",
            "draft_vocabulary": config.output_vocab_size,
        },
        data=data,
        disk_gib=_disk(recipe, config, data, total, total - frozen, dtype.itemsize, folder),
        memory_gib=_memory(recipe, config, parameters * dtype.itemsize, total - frozen),
        minutes=_minutes(recipe, config, data, _active(target, parameters), total - frozen, dtype),
        stages=_stages(recipe, data),
        folder=str(folder),
    )


def target_without_weights(recipe: Recipe) -> PreTrainedModel:
    """The target on the meta device."""
    config = _target_config(recipe)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _target_config(recipe: Recipe) -> PreTrainedConfig:
    section = recipe.target
    if section.toy is not None:
        from dspark_hf.dev.toy_target import ToySettings, toy_config

        return toy_config(ToySettings.from_mapping(section.toy))
    if section.gguf is not None:
        return gguf_config(section.gguf)
    assert section.name_or_path is not None
    location = checked_location(section.name_or_path)
    known = known_config(section.name_or_path)
    try:
        return target_config(section, location)
    except OSError:
        if known is None:
            raise
        logger.warning(f"The Hub cannot be reached; sizes of {location} are those that came with this package.")
        return known


def planned_config(recipe: Recipe, target: PreTrainedModel) -> DSparkConfig:
    """The drafter's configuration: the recipe's, or that of the drafter it starts from."""
    start = recipe.drafter.start_from
    if start is not None:
        try:
            return DSparkConfig.from_pretrained(start)
        except OSError:
            logger.warning(f"{start} cannot be opened now; the drafter's sizes are the paper's.")
    mask = recipe.drafter.mask_token_id
    # which id is free only the tokenizer knows; sizes do not depend on it
    return drafter_config(target, recipe.drafter, mask_token_id=0 if mask is None else mask)


def _data(recipe: Recipe) -> dict[str, Any]:
    data = recipe.data
    # a data set on the Hub is not downloaded to count it
    local = data.prompts in (None, BUILTIN) or data.prompts.endswith(".jsonl") or Path(data.prompts).exists()
    rows = held_out = None
    if local:
        split = load_prompts(recipe)
        rows, held_out = len(split.training), len(split.held_out)
    elif data.max_rows is not None:
        rows = round(data.max_rows * (1 - data.held_out_fraction))
        held_out = data.max_rows - rows
    longest = min(recipe.train.max_row_tokens, data.max_prompt_tokens + data.max_new_tokens)
    assumed = ASSUMED_ROWS if rows is None else rows
    return {
        "prompts": data.prompts or "the toy's own",
        "training_rows": rows,
        "held_out_prompts": held_out,
        "figures_are_for_rows": assumed,
        "tokens_at_most": assumed * longest,
        "answer_tokens_at_most": assumed * data.max_new_tokens,
    }


def _disk(
    recipe: Recipe,
    config: DSparkConfig,
    data: dict[str, Any],
    total: int,
    trained: int,
    itemsize: int,
    folder: str | Path,
) -> dict[str, float]:
    tokens = data["tokens_at_most"]
    sizes = {
        "training rows": 4.0 * tokens,
        "checkpoints": float(CHECKPOINT_BYTES * trained * (recipe.train.save_total_limit + 1)),
        "drafter": float(itemsize * total),
    }
    if recipe.data.features == "cache":
        width = {"float32": 4, "bfloat16": 2, "float8_e4m3": 1}[recipe.data.cache_dtype]
        features = width * len(config.target_layer_ids) * config.target_hidden_size + 2 * config.target_hidden_size
        sizes["feature cache"] = float(tokens * features)
    existing = Path(folder).absolute()
    while not existing.exists():
        existing = existing.parent
    return {
        **{name: round(size / GIB, 3) for name, size in sizes.items()},
        "free": _gib(shutil.disk_usage(existing).free),
    }


def _memory(recipe: Recipe, config: DSparkConfig, target_bytes: int, trained: int) -> dict[str, float]:
    train = recipe.train
    slots = train.rows_per_batch * train.anchors_per_row * config.block_size
    # keys, values and MLP of every row of the blocks, forward and backward
    activations = 4 * config.num_hidden_layers * slots * (6 * config.hidden_size + 3 * config.intermediate_size)
    chunk = min(train.loss_chunk or chunk_size(config, this_device()), slots)
    loss = 4 * chunk * (2 * config.vocab_size + config.output_vocab_size)
    return {
        "target": _gib(target_bytes),
        "drafter and optimizer": _gib(TRAINING_BYTES * trained),
        "activations": _gib(activations),
        "loss": _gib(loss),
        "installed": _gib(_installed_memory()),
    }


def _minutes(
    recipe: Recipe, config: DSparkConfig, data: dict[str, Any], active: int, trained: int, dtype: torch.dtype
) -> dict[str, float]:
    train, rows = recipe.train, data["figures_are_for_rows"]
    speed = matmul_speed(dtype, this_device())
    answers = recipe.data.max_minutes
    if answers is None and not recipe.data.ready_answers:
        answers = 2 * active * data["answer_tokens_at_most"] / (DECODING_EFFICIENCY * speed) / 60
    row_tokens = min(train.max_row_tokens, recipe.data.max_prompt_tokens + recipe.data.max_new_tokens)
    slots = min(train.anchors_per_row, row_tokens) * config.block_size
    head = 3 * config.target_hidden_size * config.vocab_size + 3 * config.hidden_size * config.output_vocab_size
    a_row = 2 * active * row_tokens + 6 * trained * (slots + row_tokens) + 2 * head * slots
    batches = train.rows_per_batch * train.gradient_accumulation_steps
    seen = train.epochs * rows if train.max_steps is None else train.max_steps * batches
    training = train.max_minutes or seen * a_row / (TRAINING_EFFICIENCY * speed) / 60
    return {
        "answers": 0.0 if answers is None else round(answers, 1),
        "training": round(training, 1),
        "matrix_products_tflops": round(speed / 1e12, 2),
    }


def _stages(recipe: Recipe, data: dict[str, Any]) -> list[str]:
    rows = "?" if data["training_rows"] is None else data["training_rows"]
    source = f"ask {recipe.data.server}" if recipe.data.server else "let the target answer"
    steps = f"{recipe.train.max_steps} steps" if recipe.train.max_steps else f"{recipe.train.epochs:g} epochs"
    length = (
        f"{recipe.train.max_minutes:g} minutes" if recipe.train.max_minutes and not recipe.train.max_steps else steps
    )
    temperatures = ", ".join(f"{value:g}" for value in recipe.evaluate.temperatures)
    return [
        "use the answers in the data" if recipe.data.ready_answers else f"{source} {rows} prompts",
        f"train for {length}, features {'from a cache' if recipe.data.features == 'cache' else 'online'}",
        f"calibrate on {recipe.calibrate.prompts} held-out prompts, measure the cost curve of this machine",
        f"evaluate on {recipe.evaluate.prompts} held-out prompts at temperature {temperatures}",
        f"push to {recipe.hub.repo_id or 'the repo given by --repo-id'}",
    ]


def _active(target: PreTrainedModel, parameters: int) -> int:
    """Parameters that one token meets: all, less the experts it is not sent to."""
    config = target.config.get_text_config().to_dict()
    experts, chosen = config.get("num_experts"), config.get("num_experts_per_tok")
    if not experts or not chosen:
        return parameters
    inside = sum(weight.numel() for name, weight in target.named_parameters() if ".experts." in name)
    return parameters - round(inside * (1 - chosen / experts))


def _installed_memory() -> int:
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[1]
    import os

    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _gib(size: float) -> float:
    return round(size / GIB, 2)


def _shown(value: Any) -> str:
    if value is None:
        return "known when the run has read its prompts"
    if isinstance(value, int) and value >= 10_000:
        return f"{value:,}"
    return str(value)
