"""`dspark-hf env`: what a bug report needs to say about a machine, and nothing that is secret."""

from __future__ import annotations

import click

from .screen import output_options, show_json


@click.command(
    "env",
    epilog="""\b
Examples:
  $ dspark-hf env
  $ dspark-hf env --json
""",
)
@output_options
def env(as_json: bool, quiet: bool) -> None:
    """Print versions and hardware for a bug report. Holds no token, user name or path."""
    from dspark_hf.hub.provenance import environment

    found = environment()
    if as_json:
        show_json(found)
        return
    lines = {"platform": found["platform"], **found["hardware"], **found["versions"]}
    for name, value in lines.items():
        click.echo(f"- {name}: {', '.join(value) if isinstance(value, list) else value}")
