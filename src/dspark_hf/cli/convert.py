"""`dspark-hf convert`: a drafter's folder in another format."""

from __future__ import annotations

import dataclasses
import json

import click


EPILOG = """\b
Examples:
  dspark-hf convert deepseek-ai/dspark_qwen3_4b_block7 out/native --to native
  dspark-hf convert out/native out/engine --to deepspec
  dspark-hf convert out/native out/speculators --to speculators --target Qwen/Qwen3-4B
"""


@click.command(epilog=EPILOG)
@click.argument("source")
@click.argument("destination", type=click.Path(file_okay=False))
@click.option("--to", required=True, type=click.Choice(["native", "deepspec", "speculators"]), help="Format to write.")
@click.option("--target", help="Target model: lends and confirms the embedding and head that a format leaves to it.")
@click.option("--overwrite", is_flag=True, help="Replace the checkpoint in a folder that is not empty.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def convert(source: str, destination: str, to: str, target: str | None, overwrite: bool, as_json: bool) -> None:
    """Write the drafter SOURCE (folder or Hub repo) to the folder DESTINATION in another format.

    Tensors are copied byte for byte; only names and config.json change.
    """
    from dspark_hf.hub.convert import convert_folder
    from dspark_hf.hub.fetch import download

    try:
        model = None
        if target is not None:
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
        result = convert_folder(download(source), destination, to=to, target=model, overwrite=overwrite)
    except (OSError, ValueError, RuntimeError) as error:
        failure = click.ClickException(" ".join(str(error).split()))
        failure.exit_code = 2
        raise failure from error
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(result), default=str))
        return
    click.echo(f"{result.folder}: {result.source_format} -> {result.format}, {result.num_tensors} tensors")
    for note in result.notes:
        click.echo(f"note: {note}")
