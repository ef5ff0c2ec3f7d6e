"""What a user would pick instead, run through the same rows, features and `generate`.

| baseline | here |
|---|---|
| Eagle3 (serial drafter, one layer) | `Eagle3Drafter`, `train_eagle3` |
| DFlash, MTP-1 | `dflash_recipe`, `mtp1_recipe`: configurations of the drafter itself |
| classic assistant | `truncated_target`, for transformers' assisted decoding |
| prompt lookup | transformers' own `prompt_lookup_num_tokens`, nothing to add |

Importing this room teaches `generate` to accept an [`Eagle3Drafter`].
"""

from transformers import AutoConfig, AutoModel

from dspark_hf.generation.candidates import GENERATORS

from .configuration_eagle3 import Eagle3Config, eagle3_config
from .configurations import dflash_recipe, mtp1_recipe
from .eagle3 import Eagle3Drafter
from .eagle3_candidates import Eagle3CandidateGenerator
from .eagle3_training import Eagle3Training, eagle3_loss, train_eagle3
from .truncated import truncated_target


__all__ = [
    "Eagle3CandidateGenerator",
    "Eagle3Config",
    "Eagle3Drafter",
    "Eagle3Training",
    "dflash_recipe",
    "eagle3_config",
    "eagle3_loss",
    "mtp1_recipe",
    "train_eagle3",
    "truncated_target",
]

AutoConfig.register("eagle3", Eagle3Config, exist_ok=True)
AutoModel.register(Eagle3Config, Eagle3Drafter, exist_ok=True)
GENERATORS[Eagle3Drafter] = Eagle3CandidateGenerator
