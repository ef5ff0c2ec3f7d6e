"""What a run publishes about itself, without the folders of the machine it ran on.

A path says who and where somebody is and means nothing to others; its last part is enough to tell which file it was.
"""

from __future__ import annotations

import copy
from pathlib import Path

from dspark_hf.hub.provenance import public_name
from dspark_hf.training.recipe import Recipe


# section, knob: where a recipe may name files of this machine
PATH_KNOBS = (("target", "name_or_path"), ("target", "gguf"), ("data", "prompts"), ("drafter", "start_from"))


def public_recipe(recipe: Recipe) -> Recipe:
    """A copy in which absolute paths are cut to their last part."""
    public = copy.deepcopy(recipe)
    for section, knob in PATH_KNOBS:
        value = getattr(getattr(public, section), knob)
        if value is not None:
            setattr(getattr(public, section), knob, public_name(value))
    return public


def public_command(command: str, recipe: Recipe) -> str:
    """The typed command with the recipe's paths cut as in `public_recipe`, and the user's home folder as `~`."""
    values = [getattr(getattr(recipe, section), knob) for section, knob in PATH_KNOBS]
    for name in sorted(filter(None, values), key=len, reverse=True):
        command = command.replace(name, public_name(name))
    home = str(Path.home())
    return command if home == "/" else command.replace(home, "~")
