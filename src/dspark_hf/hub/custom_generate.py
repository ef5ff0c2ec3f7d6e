"""`model.generate(custom_generate="<this repo>", assistant_model=drafter, trust_remote_code=True)`: DSpark decoding.

Travels in a drafter's repo as `custom_generate/generate.py`. The decoding itself is the `dspark-hf` package's.
"""


def generate(model, inputs=None, generation_config=None, assistant_model=None, **kwargs):
    """
    Text of `model`, drafted by `assistant_model`; arguments as for `model.generate`.

    Args:
        assistant_model (`DSparkDrafter` or `str`): the drafter, or the repo or folder it is loaded from.
    """
    from dspark_hf import DSparkDrafter
    from dspark_hf import generate as generate_with_drafter

    if assistant_model is None:
        raise ValueError("assistant_model is missing: pass the drafter, or the name of the repo that holds it")
    if isinstance(assistant_model, str):
        assistant_model = DSparkDrafter.from_pretrained(assistant_model, dtype=model.dtype).to(model.device)
    return generate_with_drafter(model, assistant_model, inputs, generation_config=generation_config, **kwargs)
