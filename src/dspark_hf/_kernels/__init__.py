"""Parent package of the four kernels kept in the top-level `kernels/` folder; only `dspark_hf.ops` imports from here."""
