"""Recipes as package data, so that `dspark_hf` finds the sizes of known targets in an installed wheel."""
