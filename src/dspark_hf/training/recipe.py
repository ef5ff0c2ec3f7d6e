"""A recipe: every knob of a run, in seven typed sections, each with its default in exactly one place.

    recipe = load_recipe("recipes/toy/cpu.yaml", {"train.max_steps": 100, "hub.repo_id": "me/drafter"})
    recipe.train.learning_rate, recipe.drafter.block_size, recipe.to_yaml()

| section   | dataclass          | what it decides                                                        |
|-----------|--------------------|------------------------------------------------------------------------|
| target    | `TargetSection`    | which model is accelerated: `name_or_path`, or `gguf`, or `toy`         |
| data      | `DataSection`      | prompts, how the target answers them, online or cached features         |
| drafter   | `DrafterSection`   | architecture, or the drafter to start from (`start_from`, `lora_rank`)  |
| train     | `TrainSection`     | anchors, loss, optimizer, schedule, checkpoints                         |
| calibrate | `CalibrateSection` | rollouts that fit the temperatures, and the cost curve                  |
| evaluate  | `EvaluateSection`  | held-out measurement                                                    |
| hub       | `HubSection`       | where the result goes                                                   |

The defaults are the DSpark paper's settings (block 7, 5 layers, 512 anchors a row, rank 256, learning rate 6e-4, 10 epochs,
decay 4, loss weights 0.1 / 0.9 / 1.0). A key that no section knows is a `ValueError` that names the nearest one.

It knows nothing of models, files other than the recipe itself, or what a stage does with a value.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


def knob(default: Any, *, low: float | None = None, high: float | None = None, choices: tuple | None = None) -> Any:
    """A dataclass field with its admissible range; `None` is admissible where the annotation says so."""
    metadata = {"low": low, "high": high, "choices": choices}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class TargetSection:
    """Which model is accelerated. Exactly one of `name_or_path`, `gguf` and `toy` is set."""

    name_or_path: str | None = None  # a folder or a Hub repo of a causal language model
    gguf: str | None = None  # a GGUF file, or "package:NAME" for the one inside an installed Python package
    toy: dict | None = None  # settings of the embedded toy target, {} for its defaults
    revision: str | None = None
    # auto: as stored, but float32 where this machine has no arithmetic for a stored half-precision format
    dtype: str = knob("auto", choices=("auto", "float32", "bfloat16"))
    trust_remote_code: bool = False


@dataclass
class DataSection:
    """Prompts, the answers the target gives to them, and how its features reach the trainer."""

    # prompts
    prompts: str | None = None  # JSONL file or folder of them, a Hub dataset, or "builtin"; None: the target's own
    domains: list[str] | None = None  # of the built-in prompts: code, math, chat; None: all three
    prompts_split: str = "train"
    max_rows: int | None = knob(None, low=1)
    held_out_fraction: float = knob(0.05, low=0.0, high=0.9)  # by prompt, never trained on
    system_prompt: str | None = None
    thinking: bool | None = None  # passed to the chat template as enable_thinking; None: the template's own default
    ready_answers: bool = False  # train on the answers in the data ("off-policy") instead of the target's own
    # answers
    max_prompt_tokens: int = knob(1024, low=1)
    max_new_tokens: int = knob(2048, low=2)
    temperature: float = knob(1.0, low=0.0)
    top_p: float = knob(1.0, low=0.0, high=1.0)
    top_k: int = knob(0, low=0)
    batch_size: int = knob(32, low=1)  # prompts a batch, in process
    server: str | None = None  # base URL of an OpenAI-compatible server, e.g. http://127.0.0.1:8000/v1
    server_model: str | None = None
    concurrency: int = knob(16, low=1)
    retries: int = knob(5, low=0)
    # features
    features: str = knob("online", choices=("online", "cache"))
    cache_dtype: str = knob("bfloat16", choices=("bfloat16", "float32", "float8_e4m3"))
    cache_shard_mb: int = knob(256, low=1)
    cache_limit_gb: float | None = knob(None, low=0.0)  # least recently used shards go first
    max_minutes: float | None = knob(None, low=0.0)  # stop answering prompts after this long
    seed: int = knob(0, low=0)


@dataclass
class DrafterSection:
    """The drafter's architecture. `None` means: as the target has it (or, for layer ids, spread over its depth)."""

    block_size: int = knob(7, low=1, high=64)
    num_hidden_layers: int = knob(5, low=1)
    body: str = knob("qwen3", choices=("qwen3", "gemma4"))
    target_layer_ids: list[int] | None = None  # outputs of these layers; -1 is the embedding; the last is refused
    num_target_features: int = knob(5, low=1)  # how many layers to spread when target_layer_ids is None
    intermediate_size: int | None = knob(None, low=1)
    num_attention_heads: int | None = knob(None, low=1)
    num_key_value_heads: int | None = knob(None, low=1)
    head_dim: int | None = knob(None, low=1)
    markov_rank: int = knob(256, low=0)
    markov_head_type: str = knob("vanilla", choices=("vanilla", "gated", "rnn"))
    enable_confidence_head: bool = True
    confidence_head_with_markov: bool = True
    sample_from_anchor: bool = True
    mask_token_id: int | None = knob(None, low=0)  # None: an id that the tokenizer does not use
    draft_vocab_size: int | None = knob(None, low=1)  # None: the full vocabulary
    feature_scaling: bool = False  # fold 1 / (median token RMS) of each feature layer into the initial fc weight
    start_from: str | None = None  # a published drafter, any format
    lora_rank: int | None = knob(None, low=1)  # with start_from: train a LoRA adapter instead of all weights
    lora_alpha: float | None = knob(None, low=0.0)  # None: twice the rank


@dataclass
class TrainSection:
    """Anchors, loss, optimizer, schedule and checkpoints."""

    # batches: rows are packed to at most max_tokens a micro-batch
    max_tokens: int = knob(4096, low=2)
    rows_per_batch: int = knob(1, low=1)  # rows of one micro-batch at most
    gradient_accumulation_steps: int = knob(1, low=1)
    anchors_per_row: int = knob(512, low=1)
    max_row_tokens: int = knob(4096, low=2)  # longer answers are cut here, never the supervision mask alone
    # loss
    ce_weight: float = knob(0.1, low=0.0)
    l1_weight: float = knob(0.9, low=0.0)
    confidence_weight: float = knob(1.0, low=0.0)
    kl_weight: float = knob(0.0, low=0.0)
    tau_weight: float = knob(0.0, low=0.0)  # minus the expected accepted length
    loss_decay: float = knob(4.0, low=1e-6)  # slot k weighs exp(-(k - 1) / loss_decay)
    ce_labels: str = knob("data", choices=("data", "argmax", "sample"))
    confidence_detach: bool = False
    loss_backend: str = knob("chunked", choices=("eager", "chunked", "triton"))
    loss_chunk: int | None = knob(None, low=1)  # slots a chunk; None: as many as a memory budget allows
    # optimizer and schedule
    optimizer: str = knob("adamw", choices=("adamw", "muon"))  # muon: for the body's matrices, AdamW for all else
    learning_rate: float = knob(6e-4, low=0.0)
    muon_learning_rate: float = knob(0.01, low=0.0)  # of the body's matrices; both follow the same schedule
    muon_ns_steps: int = knob(5, low=1, high=20)  # Newton-Schulz iterations a step
    final_learning_rate_fraction: float = knob(0.0, low=0.0, high=1.0)
    adam_beta1: float = knob(0.9, low=0.0, high=1.0)
    adam_beta2: float = knob(0.95, low=0.0, high=1.0)
    weight_decay: float = knob(0.0, low=0.0)  # never on norms, biases or heads
    max_grad_norm: float = knob(1.0, low=0.0)
    warmup_fraction: float = knob(0.04, low=0.0, high=1.0)
    min_warmup_steps: int = knob(20, low=0)
    ema_decay: float = knob(0.0, low=0.0, high=0.999999)  # 0: off; else the averaged weights are what is exported
    epochs: float = knob(10.0, low=0.0)
    max_steps: int | None = knob(None, low=1)  # wins over epochs; a resumed run is then exact
    max_minutes: float | None = knob(None, low=0.0)  # cosine over time; stops by the clock, so not bit-reproducible
    seed: int = knob(0, low=0)
    # numerics and machinery
    bf16: bool = False  # autocast, where the machine has bfloat16 arithmetic; parameters stay float32
    attention: str = knob("auto", choices=("auto", "sdpa", "flex"))
    dataloader_workers: int = knob(0, low=0)
    report_to: list[str] = knob([])
    # validation and checkpoints
    logging_steps: int = knob(10, low=1)
    eval_steps: int = knob(500, low=1)
    eval_rows: int = knob(64, low=0)  # 0: no validation
    eval_anchors_per_row: int = knob(16, low=1)
    save_steps: int = knob(500, low=1)
    save_total_limit: int = knob(2, low=1)
    keep: str = knob("best", choices=("best", "last"))  # weights to export; best needs validation


@dataclass
class CalibrateSection:
    """Rollouts on held-out prompts that fit one temperature a slot, and the measured cost curve."""

    prompts: int = knob(64, low=1)
    max_new_tokens: int = knob(256, low=2)
    temperatures: list[float] = knob([0.0, 1.0])  # sampling temperatures; each gets its own fit
    top_p: float = knob(1.0, low=0.0, high=1.0)
    batch_size: int = knob(8, low=1)  # prompts decoded together
    min_samples: int = knob(50, low=1)  # a slot with fewer keeps temperature 1
    # what the scheduler reads: the head, the margin of the two best draft scores, or the better one on held-out rounds
    survival: str = knob("confidence", choices=("confidence", "margin", "best"))
    fit_fraction: float = knob(0.5, low=0.05, high=0.95)  # of the prompts; the rest measures the fit
    # T(B) is timed at every width of 1 .. cost_rows rows
    cost_rows: int = knob(1, low=1)
    cost_context_tokens: int = knob(256, low=1)
    cost_deep_context_tokens: int | None = knob(None, low=2)  # a second depth, for the term of context length
    cost_seconds: float = knob(5.0, low=0.0)  # repeats go on until then


@dataclass
class EvaluateSection:
    """Held-out measurement: accepted length, tokens/s with and without, text equal to plain."""

    prompts: int = knob(64, low=1)
    max_new_tokens: int = knob(256, low=2)
    temperatures: list[float] = knob([0.0, 1.0])
    policies: list[str] = knob(["full", "auto"])
    max_minutes: float | None = knob(None, low=0.0)
    seed: int = knob(0, low=0)


@dataclass
class HubSection:
    """Where the result goes."""

    repo_id: str | None = None
    private: bool | None = None  # of new repos; None: as the account has it
    revision: str | None = None
    license: str | None = None  # None: the target's
    language: list[str] = knob(["en"])
    tags: list[str] = knob([])
    deepspec_branch: bool = True  # also write the layout that vLLM and SGLang load
    push_rows: bool = False  # publish the training rows as a dataset


@dataclass
class Recipe:
    """All sections of a run. See `load_recipe`."""

    target: TargetSection = field(default_factory=TargetSection)
    data: DataSection = field(default_factory=DataSection)
    drafter: DrafterSection = field(default_factory=DrafterSection)
    train: TrainSection = field(default_factory=TrainSection)
    calibrate: CalibrateSection = field(default_factory=CalibrateSection)
    evaluate: EvaluateSection = field(default_factory=EvaluateSection)
    hub: HubSection = field(default_factory=HubSection)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Every knob with its resolved value, as plain YAML/JSON data."""
        return dataclasses.asdict(self)

    def to_yaml(self) -> str:
        """The resolved recipe; `load_recipe` reads it back equal."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    def fingerprint(self, *sections: str) -> str:
        """Hex digest (16 characters) of the named sections, all by default. Equal values give equal digests."""
        values = self.to_dict()
        chosen = {name: values[name] for name in (sections or values)}
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]


def load_recipe(path: str | Path, overrides: Mapping[str, Any] | Iterable[str] = ()) -> Recipe:
    """Read a YAML recipe and apply overrides.

    Args:
        path (`str` or `Path`):
            The YAML file.
        overrides (`Mapping` or iterable of `str`, *optional*):
            `{"train.max_steps": 10}` or `["train.max_steps=10"]`; the text after `=` is read as YAML.

    Returns:
        `Recipe`: every knob resolved and checked.

    Raises:
        ValueError: an unknown section or key (the nearest known one is named), a value of the wrong type or out of range,
            or a target that is missing or named twice.
        FileNotFoundError: no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No recipe at {path}. Give the path of a YAML file, e.g. recipes/toy/cpu.yaml.")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path} must hold sections such as 'target:' and 'train:', not {type(document).__name__}.")
    return build_recipe(document, overrides)


def build_recipe(document: Mapping[str, Any], overrides: Mapping[str, Any] | Iterable[str] = ()) -> Recipe:
    """As `load_recipe`, from a nested mapping of sections."""
    sections = {item.name: item.default_factory for item in dataclasses.fields(Recipe)}
    values: dict[str, dict[str, Any]] = {name: {} for name in sections}
    for section, content in document.items():
        _require_known(section, sections, "section", "a recipe")
        if content is None:
            continue
        if not isinstance(content, Mapping):
            raise ValueError(f"Section {section!r} must hold 'key: value' lines, not {content!r}.")
        values[section] = dict(content)
    for dotted, value in _override_pairs(overrides):
        section, _, key = dotted.partition(".")
        _require_known(section, sections, "section", "a recipe")
        if not key:
            raise ValueError(f"Override {dotted!r} must look like 'section.key', e.g. 'train.max_steps'.")
        values[section][key] = value
    recipe = Recipe(**{name: _build_section(kind, name, values[name]) for name, kind in sections.items()})
    _check_target(recipe.target)
    _check_together(recipe)
    return recipe


def _override_pairs(overrides: Mapping[str, Any] | Iterable[str]) -> list[tuple[str, Any]]:
    if isinstance(overrides, Mapping):
        return list(overrides.items())
    pairs = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"Override {text!r} must look like 'section.key=value', e.g. 'train.max_steps=100'.")
        pairs.append((key.strip(), yaml.safe_load(value)))
    return pairs


def _require_known(key: Any, known: Iterable[str], what: str, where: str) -> None:
    known = list(known)
    if key in known:
        return
    nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
    raise ValueError(f"Unknown {what} {key!r} in {where}; the nearest known one is {nearest!r}.")


def _build_section(kind: Any, section: str, values: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    fields = {item.name: item for item in dataclasses.fields(kind)}
    checked = {}
    for key, value in values.items():
        _require_known(key, fields, "key", f"section {section!r}")
        name = f"{section}.{key}"
        checked[key] = _check_range(name, _convert(name, value, hints[key]), fields[key].metadata)
    return kind(**checked)


def _convert(name: str, value: Any, hint: Any) -> Any:
    """`value` as the annotated type, or a `ValueError` that names the key. YAML 1.1 reads `6e-4` as text: taken as a number."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None:
        if type(None) in options:
            return None
        raise ValueError(f"{name} must be {_describe(hint)}; it is empty.")
    for option in options:
        origin = typing.get_origin(option) or option
        if origin is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
            try:
                return float(value)
            except ValueError:
                continue
        if origin is int and isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value):
            return int(value)
        if origin is list and isinstance(value, (list, tuple)):
            (item,) = typing.get_args(option)
            return [_convert(f"{name}[{index}]", entry, item) for index, entry in enumerate(value)]
        if origin is dict and isinstance(value, Mapping):
            return dict(value)
        if origin in (str, bool) and type(value) is origin:
            return value
    raise ValueError(f"{name} must be {_describe(hint)}, not {value!r}.")


def _describe(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "empty"}
    if isinstance(hint, types.UnionType):
        return " or ".join(_describe(option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is list:
        return f"a list, each item {_describe(typing.get_args(hint)[0])}"
    return words.get(hint, "a mapping")


def _check_range(name: str, value: Any, limits: Mapping[str, Any]) -> Any:
    if value is None:
        return value
    low, high, choices = limits.get("low"), limits.get("high"), limits.get("choices")
    if choices is not None and value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
    if low is not None and not value >= low:
        raise ValueError(f"{name} must be at least {low}, not {value!r}.")
    if high is not None and not value <= high:
        raise ValueError(f"{name} must be at most {high}, not {value!r}.")
    return value


def _check_target(target: TargetSection) -> None:
    values = dataclasses.asdict(target)
    given = [name for name in ("name_or_path", "gguf", "toy") if values[name] is not None]
    if not given:
        raise ValueError(
            "No target: set target.name_or_path (a folder or Hub repo), target.gguf (a file) or target.toy."
        )
    if len(given) > 1:
        raise ValueError(f"The target is named twice ({' and '.join('target.' + name for name in given)}); keep one.")


def _check_together(recipe: Recipe) -> None:
    """Contradictions between knobs that are each fine alone."""
    if recipe.drafter.lora_rank is not None and recipe.drafter.start_from is None:
        raise ValueError("drafter.lora_rank needs drafter.start_from, the drafter that the adapter sits on.")
    if not recipe.drafter.sample_from_anchor and recipe.drafter.block_size < 2:
        raise ValueError("drafter.block_size must be at least 2 when drafter.sample_from_anchor is false.")
    train = recipe.train
    if not any((train.ce_weight, train.l1_weight, train.kl_weight, train.tau_weight)):
        raise ValueError(
            "All loss weights are 0; set at least one of train.ce_weight, l1_weight, kl_weight, tau_weight."
        )
    if recipe.data.ready_answers and recipe.data.server:
        raise ValueError("data.ready_answers uses the answers in the data; data.server would not be asked. Keep one.")
