"""Training: recipe -> rows -> features -> anchors -> loss -> drafter. Each step is a module of its own."""

from .losses import DSparkLoss, LossWeights, dspark_loss
from .recipe import Recipe, load_recipe
from .teacher import TeacherHead


__all__ = ["DSparkLoss", "LossWeights", "Recipe", "TeacherHead", "dspark_loss", "load_recipe"]
