"""Training: recipe -> rows -> features -> anchors -> loss -> drafter. Each step is a module of its own."""

from .losses import DSparkLoss, LossWeights, TeacherHead, dspark_loss
from .recipe import Recipe, load_recipe


__all__ = ["DSparkLoss", "LossWeights", "Recipe", "TeacherHead", "dspark_loss", "load_recipe"]
