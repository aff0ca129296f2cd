"""gemma4 recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemma4cli.cli._errors import reports_errors

recipes = typer.Typer(
    name="recipes",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List the recipes that come along, print one, or copy one to make it yours.",
)
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="As gemma4 recipes list has it.")]


@recipes.command("list")
@reports_errors
def list_() -> int:
    """List the recipes that come along, each with what it is for.

    [bold]Examples[/]

      gemma4 recipes list
    """
    from gemma4cli import recipe_files

    known = recipe_files.shipped()
    width = max(map(len, known), default=0)
    for name, path in known.items():
        typer.echo(f"{name:<{width}}  {recipe_files.description(path)}".rstrip())
    return 0


@recipes.command()
@reports_errors
def show(name: Name) -> int:
    """Print a recipe.

    [bold]Examples[/]

      gemma4 recipes show ocr
    """
    typer.echo(_source(name).read_text(encoding="utf-8"), nl=False)
    return 0


@recipes.command()
@reports_errors
def copy(
    name: Name,
    to: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", show_default=False, help="Default: NAME.toml, here.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Also where that file is there.")] = False,
) -> int:
    """Copy a recipe into a file of your own, to change it.

    [bold]Examples[/]

      gemma4 recipes copy tags
      gemma4 recipes copy tags shop/products.toml
    """
    from gemma4cli.cli._output import print_line
    from gemma4cli.errors import UsageError
    from gemma4cli.escaping import printable

    source = _source(name)
    if str(to) == "-":
        raise UsageError("- is no file to copy a recipe to", f"gemma4 recipes show {source.stem} prints it.")
    target = to or Path(source.name)
    if target.is_dir():
        target /= source.name
    shown = printable(str(target))
    try:
        with target.open("wb" if overwrite else "xb") as file:
            file.write(source.read_bytes())
    except FileExistsError:
        raise UsageError(f"{shown} is there already", "Name another file, or add --overwrite.") from None
    except OSError as error:
        raise UsageError(f"{shown}: {error.strerror or error}", "Name a file that can be written.") from None
    print_line(f"{shown} is yours: gemma4 run {shown} INPUT")
    return 0


def _source(name: str) -> Path:
    import difflib

    from gemma4cli import recipe_files
    from gemma4cli.errors import UsageError
    from gemma4cli.escaping import printable

    known = recipe_files.shipped()
    if name.removesuffix(".toml") in known:
        return known[name.removesuffix(".toml")]
    near = difflib.get_close_matches(name, known, 1, 0.5)
    did = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(f"no recipe {printable(name)} comes along", f"{did}gemma4 recipes list shows those that do.")
