"""
The commands for components of steps: which there are, what each needs and does, and a template for one's own.
"""

from __future__ import annotations

import json
import sys
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlast.cli.options import AsJson  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import hint, print_block, print_found, print_json, print_whole_table, refuse, say
from outlast.components.registry import component_names, find_component
from outlast.errors import ConfigurationError, nearest
from outlast.kernel.redact import error_text
from outlast.settings.checks import show

if TYPE_CHECKING:
    from outlast.components.describing import Component

components = typer.Typer(name="components", help="List and describe the components of steps.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="A component, such as files.reader.")]


@components.command("list")
def list_components(*, as_json: AsJson = False) -> None:
    """List all components that a pipeline file may name."""
    print_found(
        [_looked_up(name) for name in component_names()],
        lambda found: found,
        lambda found: (found["name"], ", ".join(found["modes"]), found["connection"], found["summary"]),
        as_json=as_json,
        none="There are no components.",
        headings=("component", "modes", "connection", "what it does"),
        wrap=("what it does",),
    )


def _looked_up(name: str) -> dict[str, Any]:
    """One that cannot be loaded is listed too: it says so in place of what it does."""
    try:
        found = find_component(name)
    except ConfigurationError as broken:
        return {"name": name, "modes": [], "connection": "", "summary": error_text(broken), "usable": False}
    if found is None:
        return {"name": name, "modes": [], "connection": "", "summary": "It is not there any more.", "usable": False}
    return {
        "name": name,
        "modes": list(found.modes),
        "connection": found.connection,
        "summary": found.summary,
        "usable": True,
    }


@components.command("show")
def show_component(name: Name, *, as_json: AsJson = False) -> None:
    """Show what a component needs and does: the keys of its config, its outputs, an example."""
    found = find_component(name)
    if found is None:
        near = nearest(name, component_names()) or " outlast components list shows all of them."
        refuse(f"expected the name of a component, got: {show(name)}.{near}")
    document = as_document(found)
    if as_json:
        print_json(document)
        return
    say(f"{found.name}: {found.summary}")
    say()
    rows = [
        (
            key,
            "yes" if one["needed"] else "",
            _meaning(one),
            "" if one["default"] is None else json.dumps(one["default"]),
        )
        for key, one in document["config"].items()
    ]
    print_whole_table(("config", "needed", "meaning", "default"), rows, wrap=("meaning", "default"))
    say()
    if found.outputs is None:
        say("Its outputs may have any name.")
    elif found.outputs:
        print_whole_table(("output", "meaning"), found.outputs.items(), wrap=("meaning",))
    for line in _said(found):
        say(line)
    say()
    print_block(f"component: {found.name}\nconfig: {json.dumps(dict(found.example), ensure_ascii=False)}")


def _meaning(key: dict[str, Any]) -> str:
    choices = f"one of {', '.join(map(str, key['choices']))}" if key["choices"] else ""
    return "; ".join(part for part in (key["meaning"], choices) if part)


def as_document(found: Component) -> dict[str, Any]:
    """A component as JSON has it."""
    properties = found.schema().get("properties", {})
    usual = found.resolved({})
    return {
        "name": found.name,
        "summary": found.summary,
        "modes": list(found.modes),
        "config": {
            key: {
                "needed": key not in usual,
                "meaning": properties.get(key, {}).get("description", ""),
                "choices": list(found.choices(key)),
                "default": usual.get(key),
            }
            for key in found.keys
        },
        "outputs": None if found.outputs is None else dict(found.outputs),
        "secrets": list(found.secrets),
        "literal": list(found.literal),
        "connection": found.connection,
        "overrides": dict(found.overrides),
        "side_effects": found.side_effects,
        "idempotent": found.idempotent,
        "idempotent_if": {key: list(values) for key, values in found.idempotent_if.items()},
        "network": found.network,
        "needs_compensation": found.needs_compensation,
        "takes_row": found.takes_row,
        "types": dict(found.types),
        "example": dict(found.example),
        "schema": found.schema(),
    }


def _said(found: Component) -> list[str]:
    said = [f"Modes: {', '.join(found.modes)}."] if found.modes else []
    if found.connection:
        said.append(f"Connection: @{found.connection}.alias, in the connections file.")
    for rule, words in _RULES.items():
        fields = [key for key, one in found.overrides.items() if one == rule]
        said += [f"{words}: {', '.join(fields)}."] if fields else []
    said += [f"Takes no references: {', '.join(found.literal)}."] if found.literal else []
    said += [f"Secret: {', '.join(found.secrets)}."] if found.secrets else []
    said += ["What it has done is not undone by failing."] if found.side_effects else []
    said += ["Doing it twice is doing it once."] if found.idempotent else []
    for key, values in found.idempotent_if.items():
        words = ", ".join("nothing" if value is None else str(value) for value in values)
        said.append(f"Doing it twice is doing it once where {key} is {words}.")
    said += ["It waits for somebody else: give a step a time limit (R36)."] if found.network else []
    said += ["A step should say what undoes it, in compensate (R33)."] if found.needs_compensation else []
    said += ["With for_each it gets the row by itself, if the step does not name it."] if found.takes_row else []
    return ["", *said] if said else []


_RULES = {
    "allowed": "A step may give in place of the connection",
    "warning": "A step may give, with a warning",
    "forbidden": "Comes from the connection only",
}


@components.command("new")
def new_component(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: family.role, such as shop.sender.")],
    *,
    folder: Annotated[Path, typer.Option("--folder", help="Where to put the files.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """
    Write the beginning of a component of your own, with its test.

    Nothing that is there already is overwritten.
    """
    from outlast.components.describing import NAME
    from outlast.components.steps import OWN
    from outlast.components.template import entry_for, files_for, module_of, project_for
    from outlast.spec.calling import installed

    if not NAME.fullmatch(name):
        refuse(f"expected a name such as shop.sender, in small letters, got: {show(name)}.")
    if name in OWN:
        refuse(f"expected a name that Outlast does not have itself, got: {show(name)}.")
    if not folder.is_dir():
        refuse(f"expected --folder to be a folder, got: {show(str(folder))}.")
    module = module_of(name)
    if iskeyword(module):
        refuse(f"expected a name that is no word of Python, got: {show(name)}. {_in_two_parts(name)}")
    files = {folder / file: text for file, text in files_for(name).items()}
    there = [path for path in files if path.exists() or path.is_symlink()]
    if there:
        refuse(*(f"expected {path} not to be there yet. Choose another name, or another folder." for path in there))
    if module in sys.stdlib_module_names or installed(module) is not None:
        # Beside it nobody could import the other one any more: outlast itself, for instance, needs json and pydantic.
        refuse(f"expected a name that no module has that can be imported, got: {show(name)}. {_in_two_parts(name)}")
    for path, text in files.items():
        with path.open("x", encoding="utf-8") as file:  # never over a file that has just appeared
            file.write(text)
    if as_json:
        found = {"name": name, "files": [str(path) for path in files], "entry_point": entry_for(name)}
        print_json(found | {"pyproject": project_for(name)})
        return
    say(f"Written: {', '.join(map(str, files))}.")
    if (folder / "pyproject.toml").exists():
        hint("Have pipeline files find it: put this into your pyproject.toml, and run pip install -e .")
        print_block(entry_for(name).rstrip())
    else:
        hint("Have pipeline files find it: put this into a file pyproject.toml beside it, and run pip install -e .")
        print_block(project_for(name).rstrip())


def _in_two_parts(name: str) -> str:
    return f"Choose another, such as {name}.sender, which is in {name.replace('.', '_').replace('-', '_')}_sender.py."
