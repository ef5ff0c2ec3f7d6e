"""`dspark-hf convert`: a drafter's folder in another format."""

from __future__ import annotations

from dataclasses import asdict

import click

from .screen import output_options, show_json


@click.command(
    "convert",
    epilog="""\b
Examples:
  $ dspark-hf convert deepseek-ai/dspark_qwen3_4b_block7 out/native --to native
  $ dspark-hf convert out/native out/engine --to deepspec
  $ dspark-hf convert out/native out/speculators --to speculators --target Qwen/Qwen3-4B
""",
)
@click.argument("source")
@click.argument("destination", type=click.Path(file_okay=False))
@click.option("--to", required=True, type=click.Choice(["native", "deepspec", "speculators"]), help="Format to write.")
@click.option("--target", help="Target model: lends and confirms the embedding and head that a format leaves to it.")
@click.option("--overwrite", is_flag=True, help="Replace the checkpoint in a folder that is not empty.")
@output_options
def convert(
    source: str, destination: str, to: str, target: str | None, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    """Write the drafter SOURCE (folder or Hub repo) to the folder DESTINATION in another format.

    Tensors are copied byte for byte; only names and config.json change.
    """
    from dspark_hf.hub.convert import convert_folder
    from dspark_hf.hub.fetch import download

    model = None
    if target is not None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    result = convert_folder(download(source), destination, to=to, target=model, overwrite=overwrite)
    if as_json:
        show_json({**asdict(result), "folder": str(result.folder)})
    elif not quiet:
        click.echo(f"{result.folder}: {result.source_format} -> {result.format}, {result.num_tensors} tensors")
        for note in result.notes:
            click.echo(f"note: {note}")
