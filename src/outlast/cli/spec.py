"""
The commands for pipeline files: ``validate``, ``compile``, ``explain``, ``diff`` and ``schema``. They run nothing and connect to nothing.
"""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from outlast.cli.options import AsJson, ConnectionsFile, Params, Root  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import (
    Code,
    console,
    hint,
    print_document,
    print_json,
    print_whole_table,
    refuse,
    say,
    shortened,
)
from outlast.display.graph import gutter
from outlast.errors import ConfigurationError, nearest
from outlast.kernel.redact import mask, plain, to_json
from outlast.kernel.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.spec.compile import Compiled
    from outlast.spec.diff import Diff
    from outlast.spec.manifest import Manifest
    from outlast.spec.mistakes import Mistake

_MOST_VALUE = 60  # characters of a list or an object
_MOST_LANES = 40  # edges side by side that a graph is drawn with
_MOST_NAMED = 5  # steps that are named as needed, if it is not drawn
_MOST_MANIFEST = 200_000_000  # bytes; a pipeline file has fewer

File = Annotated[str, typer.Argument(metavar="FILE", help="A pipeline file.", show_default=False)]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="The profile of the file to use.", show_default=False)
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 2 if there are warnings, too.")]


@dataclass(frozen=True, slots=True)
class Given:
    """What a command says about pipeline files, beside their paths."""

    params: Mapping[str, Any]
    profile: str | None
    connections: str | None
    root: str | None

    @property
    def options(self) -> str:
        """The options that were used, in words; none if there is none."""
        said = {
            "--param": self.params,
            "--profile": self.profile,
            "--connections": self.connections,
            "--root": self.root,
        }
        return " and ".join(option for option, value in said.items() if value)


def given_of(param: Sequence[str] | None, profile: str | None, connections: str | None, root: str | None) -> Given:
    """The options of a command; everything that is wrong with them ends it."""
    found: dict[str, str] = {}
    problems: list[str] = []
    for text in param or ():
        name, mark, value = text.partition("=")
        if not mark or not name.strip():
            problems.append("expected --param to be a name and a value, such as batch=monday, got: no = in it")
        elif name.strip() in found:
            problems.append(f"expected --param {name.strip()} once, got: twice")
        found[name.strip()] = value
    if root is not None and not os.path.isdir(root):  # noqa: PTH112 - which is False for a name that is too long
        problems.append(f"expected --root to be a folder, got: {root}")
    if problems:
        refuse(*problems)
    return Given(found, profile, connections, root)


# -- validate ----------------------------------------------------------------------------------------------------------


def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Pipeline files.", show_default=False)],
    *,
    strict: Strict = False,
    param: Params = None,
    profile: Profile = None,
    connections: ConnectionsFile = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """
    Check flow files and report every mistake.

    A file is checked as it is and with each of its profiles, with --profile only with that one. Parameters that have no
    value yet are left open.
    """
    given = given_of(param, profile, connections, root)
    documents: list[dict[str, Any]] = []
    said: set[str] = set()
    bad = False
    for file in files:
        compiled, unread = _looked_at(file, given, complete=False, every_profile=True)
        told = compiled.mistakes if compiled is not None else ()
        wrong = compiled is None or bool(compiled.errors)
        warned = compiled is not None and compiled.counts.get("warning", 0) > 0
        bad |= wrong or (strict and warned)
        unchecked = "" if compiled is None else _unchecked(file, compiled, given)
        scheduled = (
            not wrong and compiled is not None and compiled.model is not None and compiled.model.schedule is not None
        )
        by = {"schedule_run_by": _carried_out(file)} if scheduled else {}
        documents.append(_document(file, told, unread, unchecked, valid=not wrong) | by)
        if as_json:
            continue
        for line in [unread] if unread else map(str, told):
            if line not in said:  # of a connections file that several of them have
                hint(line)
            said.add(line)
        if compiled is not None and not wrong:
            say(f"{file}: valid, {_summed_up(compiled, given)}.")
        if scheduled:
            say(f"{file}: its schedule is run by a worker that is given the file: {_carried_out(file)}")
        if unchecked:
            hint(unchecked)
    if as_json:
        print_json({"files": documents, "exit_code": int(Code.INVALID if bad else Code.COMPLETED)})
    if bad:
        raise typer.Exit(Code.INVALID)


def _carried_out(file: str) -> str:
    return shlex.join(["outlast", "worker", "--flow", file])


def _summed_up(compiled: Compiled, given: Given) -> str:
    from outlast.spec.profiles import names_of

    counts = [counted(0 if compiled.model is None else len(compiled.model.steps), "step")]
    profiles = 0 if compiled.model is None or given.profile is not None else len(names_of(compiled.model.node))
    counts += [counted(profiles, "profile")] if profiles else []
    for severity, word in (("warning", "warning"), ("note", "note")):
        number = compiled.counts.get(severity, 0)
        counts += [counted(number, word)] if number else []
    return ", ".join(counts)


def _unchecked(file: str, compiled: Compiled, given: Given) -> str:
    """That the connections of a file are not checked, because no file has any; nothing if they are, or it names none."""
    from outlast.spec.connections import FILE

    model = compiled.model
    if model is None or model.connections is not None or not model.names_connections:
        return ""
    missing = (Path(file).parent if given.root is None else Path(given.root)) / FILE
    way_out = "Name it with --connections" + (", or its folder with --root" if given.root is None else "")
    if given.root is None and Path(FILE).is_file():
        way_out = f"For the {FILE} of this folder: --root ."
    return f"{file}: connections are not checked, because there is no {missing}. {way_out}"


def _document(file: str, mistakes: Sequence[Mistake], unread: str, unchecked: str, *, valid: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"file": file, "valid": valid, "mistakes": [_as_document(one) for one in mistakes]}
    return found | {key: text for key, text in (("error", unread), ("note", unchecked)) if text}


def _as_document(one: Mistake) -> dict[str, Any]:
    words = {key: plain(mask(getattr(one, key))) for key in ("expected", "got", "way_out")}
    where = ".".join(map(str, one.path))
    return {"line": one.line, "column": one.column, "path": mask(where), **words} | {
        "code": one.code,
        "severity": one.severity,
        "text": str(one),
        **({"profiles": list(one.profiles)} if one.profiles else {}),
    }


# -- compile -----------------------------------------------------------------------------------------------------------


def compile_file(
    file: File,
    *,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="PATH", help="Write the manifest to this file.", show_default=False),
    ] = None,
    strict: Strict = False,
    param: Params = None,
    profile: Profile = None,
    connections: ConnectionsFile = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """
    Compile a flow file and print its plan. That is the graph, and the schedule of every step.
    """
    from outlast.spec.connections import FILE as CONNECTIONS

    manifest = _manifest(file, given_of(param, profile, connections, root), strict=strict, warn=True)
    if output is not None:
        known = Path(connections) if connections is not None else Path(root or Path(file).parent) / CONNECTIONS
        _write(output, [Path(file), known], manifest.to_json())
    if as_json:
        print_document(manifest.to_json().rstrip("\n"))
        return
    _print_plan(manifest)
    if output is not None:
        hint(f"The manifest is in {output}.")


def _write(output: str, sources: Sequence[Path], text: str) -> None:
    """
    The whole manifest or nothing, and never in place of what it was made of. A link stays one: its target is written.
    What is no plain file (a pipe, a device) gets the text written to it.
    """
    path = Path(output)
    if not output or path.is_dir():
        refuse(f"expected --output to be a file, got: {f'{output}, a folder' if output else 'nothing'}")
    for source in sources:
        if path.exists() and source.exists() and path.samefile(source):
            refuse(f"expected --output to be another file than {source}, which the manifest is made of, got: {output}")
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    path = Path(os.path.realpath(output))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        if path.exists():
            beside.chmod(stat.S_IMODE(path.stat().st_mode))
        beside.replace(path)
    except OSError as failed:
        beside.unlink(missing_ok=True)
        raise OSError(failed.errno, failed.strerror, output) from None


def _print_plan(manifest: Manifest) -> None:
    from outlast.spec import plan

    out = console()
    out.print(
        Text.assemble(
            (plain(manifest.name), "bold"), f"  {counted(len(manifest.steps), 'step')}  ", (manifest.fingerprint, "dim")
        )
    )
    for line in _params_told(manifest):
        out.print(Text(line))
    out.print()
    components = {step.id: plan.done_by(step) for step in manifest.steps}
    width = max(len(name) for name in components)
    drawn = gutter(plan.edges(manifest), [*components], _MOST_LANES)
    for lines, name in drawn:
        out.print(Text(f"{lines}  {name.ljust(width)}  {plain(components[name])}"))
    for step in () if drawn else manifest.steps:  # too wide to be drawn
        more = f", and {len(step.needs) - _MOST_NAMED:,} more" if len(step.needs) > _MOST_NAMED else ""
        after = f"  after {', '.join(step.needs[:_MOST_NAMED])}{more}" if step.needs else ""
        out.print(Text(f"{step.id.ljust(width)}  {plain(components[step.id])}{after}"))
    out.print()
    print_whole_table(plan.STEPS, plan.step_rows(manifest), wrap=("waits", "retried"))
    rows = [row for step in manifest.steps for row in plan.schedule_rows(step.id, step.policy, step.timing)]
    if rows:
        out.print()
        print_whole_table(plan.SCHEDULE, rows, wrap=("step",))
    kept = [(step.id, line) for step in manifest.steps for line in plan.safeguards(step.policy, step.timing, step.work)]
    if kept:
        out.print()
        print_whole_table(("step", "also holds"), kept, wrap=("also holds",))


def _params_told(manifest: Manifest) -> list[str]:
    said = [f"{name} = {plain(_in_short(value))}" for name, value in manifest.params.items()]
    lines = [f"params: {', '.join(said)}"] if said else []
    if manifest.open_params:
        lines.append(f"given when it runs: {', '.join(manifest.open_params)}")
    return lines


def _in_short(value: Any) -> str:
    """The value of a parameter as the file has it; lists and objects as JSON, in part if they are long."""
    from outlast.settings.checks import show

    return shortened(mask(to_json(value, indent=None)), _MOST_VALUE) if isinstance(value, list | dict) else show(value)


# -- explain -----------------------------------------------------------------------------------------------------------


def explain(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[PRESET | FILE]", help="A preset, a pipeline file or a manifest.", show_default=False),
    ] = None,
    step: Annotated[
        str | None, typer.Argument(metavar="[STEP]", help="The step of the file.", show_default=False)
    ] = None,
    *,
    param: Params = None,
    profile: Profile = None,
    connections: ConnectionsFile = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """
    Explain what happens when a step or a preset fails.

    Without a step: the steps of the file. Without an argument: the presets that there are.
    """
    from outlast.spec import plan

    given = given_of(param, profile, connections, root)
    if step is None and given.options and (name is None or name in plan.PRESETS):
        refuse(f"expected {given.options} with a file, got: {'nothing' if name is None else 'a preset'}")
    if name is None:
        _explain_presets(as_json=as_json)
        return
    if step is None and (name in plan.PRESETS or not Path(name).exists()):
        _explain_preset(name, as_json=as_json)
        return
    if given.options and is_manifest(name):
        refuse(f"expected {given.options} with a pipeline file, got: {name}, which is compiled already")
    manifest = read_manifest(name, given)
    if step is None:
        _explain_steps(manifest, as_json=as_json)
        return
    found = next((one for one in manifest.steps if one.id == step), None)
    if found is None:
        ids = [one.id for one in manifest.steps]
        near = nearest(step, ids) or f" It has {', '.join(ids[:20])}{', ...' if len(ids) > 20 else ''}."
        refuse(f"expected a step of {name}, got: {step!r}.{near}")
    _print_explained(f"{step} ({found.component})", step, found.policy, found.timing, found.work, as_json=as_json)


def _explain_presets(*, as_json: bool) -> None:
    from outlast.spec import plan

    found = {name: plan.of_policy(policy) for name, policy in plan.PRESETS.items()}
    if as_json:
        print_json([{"name": name, "policy": policy, "timing": timing} for name, (policy, timing) in found.items()])
        return
    rows = [(name, next(iter(plan.sentences(policy, timing, {})))) for name, (policy, timing) in found.items()]
    print_whole_table(("preset", "what it does"), rows, wrap=("what it does",))


def _explain_steps(manifest: Manifest, *, as_json: bool) -> None:
    from outlast.spec import plan

    if as_json:
        print_json([{"name": one.id, "policy": one.policy, "timing": one.timing} for one in manifest.steps])
        return
    rows = [
        (
            one.id,
            one.component,
            " ".join([*plan.sentences(one.policy, one.timing, one.work)][: 2 if "for_each" in one.work else 1]),
        )
        for one in manifest.steps
    ]
    print_whole_table(("step", "component", "what it does"), rows, wrap=("what it does",))
    hint("All about one of them: outlast explain FILE STEP")


def _explain_preset(name: str, *, as_json: bool) -> None:
    from outlast.spec import plan

    if name not in plan.PRESETS:
        way_out = nearest(name, list(plan.PRESETS)) or f" Presets are {', '.join(plan.PRESETS)}."
        if Path(name).suffix or os.sep in name:  # a file is meant
            refuse(f"expected a pipeline file or a manifest that can be read, got: no file {name!r}.")
        refuse(f"expected a preset or a file, got: {name!r}, which is neither.{way_out}")
    policy, timing = plan.of_policy(plan.PRESETS[name])
    _print_explained(name, name, policy, timing, {}, as_json=as_json)


def _print_explained(
    title: str,
    name: str,
    policy: Mapping[str, Any],
    timing: Mapping[str, Any],
    work: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    from outlast.spec import plan

    lines = [*plan.sentences(policy, timing, work)]
    if as_json:
        print_json({"name": name, "sentences": lines, "policy": policy, "timing": timing})
        return
    out = console()
    out.print(Text(plain(title), style="bold"))
    for line in lines:
        out.print(Text(plain(line)))
    if timing["delays"]:
        out.print()
        print_whole_table(plan.SCHEDULE[1:], [row[1:] for row in plan.schedule_rows(name, policy, timing)])
    out.print()
    print_whole_table(plan.ERRORS, plan.error_rows(timing), wrap=("retried", "fails at once"))


# -- diff --------------------------------------------------------------------------------------------------------------


def diff_files(
    before: Annotated[str, typer.Argument(metavar="A", help="A manifest or a pipeline file.", show_default=False)],
    after: Annotated[str, typer.Argument(metavar="B", help="Another one, or a newer one.", show_default=False)],
    *,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if they differ.")] = False,
    param: Params = None,
    profile: Profile = None,
    connections: ConnectionsFile = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """
    Compare two flow files or manifests, in work and in policy.

    A file is compared with a manifest as it would run now: with the profile and the given parameters of the manifest, and
    with its own defaults and profiles.
    """
    from outlast.spec.diff import diff

    given = given_of(param, profile, connections, root)
    if given.options and is_manifest(before) and is_manifest(after):
        refuse(f"expected {given.options} with a pipeline file, got: two manifests, which are compiled already")
    manifests = [one for one in (before, after) if is_manifest(one)]
    carried = Carried(given, {}, ())
    if len(manifests) == 1:
        (file,) = (one for one in (before, after) if one != manifests[0])
        carried = _carried(manifests[0], file, given)
        given = carried.given
        for line in carried.told:
            hint(line)
    found = diff(read_manifest(before, given), read_manifest(after, given))
    if as_json:
        print_json(_diff_document(found) | {"carried": dict(carried.values)})
    elif found.same:
        say("They are the same: same work, same policy.")
    else:
        _print_diff(found)
    if check and not found.same:
        raise typer.Exit(Code.FAILED)


@dataclass(frozen=True, slots=True)
class Carried:
    """What a file that is compared with a manifest gets of it: the values of parameters, and in words what was done."""

    given: Given
    values: Mapping[str, Any]
    told: tuple[str, ...]


def _carried(manifest: str, file: str, given: Given) -> Carried:
    """
    What is given for a file that is compared with a manifest, so that the comparison says whether what would run now is what
    ran: values that were given for the manifest are given again, unless others are given now, by hand or by the
    environment. Values from a default or a profile are those that the file has now. The profile is the manifest's,
    unless one is given or the file has it no more.
    """
    from outlast.spec.params import Unfit, value_for, variable_of

    compiled, _ = _looked_at(file, given, complete=False)
    if compiled is None or compiled.model is None:
        return Carried(given, {}, ())
    known, model = read_manifest(manifest, given), compiled.model
    profiles = model.node.get("profiles")
    has_profile = profiles is not None and profiles.kind == "map" and profiles.get(known.profile or "") is not None
    profile = known.profile if given.profile is None and has_profile else given.profile
    now, _ = _looked_at(file, replace(given, profile=profile), complete=False)
    own = {} if now is None or now.model is None else now.model.values
    values: dict[str, Any] = {}
    unfit: list[str] = []
    for name, value in known.params.items():
        declared = model.params.get(name)
        if declared is None or declared.sensitive or name in given.params or variable_of(name) in os.environ:
            continue
        # Of a manifest that does not say where a value comes from, only what the file has no value for is taken.
        was_given = known.params_from.get(name) in ("given", "environment")
        if was_given or (not known.params_from and name not in own):
            try:
                values[name] = value_for(declared, value)
            except Unfit:
                unfit.append(name)
    told: list[str] = []
    if known.params and not known.params_from:
        told.append(
            f"{manifest} does not say where its parameters come from: it was compiled by an older version. "
            f"{file} is compiled with its own defaults and profiles; give what was given then with --param."
        )
    if values:
        said = ", ".join(f"{name} = {plain(_in_short(value))}" for name, value in values.items())
        told.append(f"Carried over from {manifest}, where it was given: {said}. --param gives another value.")
    if unfit:
        told.append(f"Not carried over from {manifest}, because {file} does not take it any more: {', '.join(unfit)}.")
    return Carried(replace(given, params={**values, **given.params}, profile=profile), values, tuple(told))


def _diff_document(found: Diff) -> dict[str, Any]:
    return {
        "same": found.same,
        "file": list(found.file),
        "steps": [
            {
                "id": step.id,
                "kind": step.kind,
                "changes": [
                    {"part": one.part, "path": one.path, "before": one.before, "after": one.after, "text": one.text}
                    for one in step.changes
                ],
                "consequences": list(step.consequences),
            }
            for step in found.steps
        ],
    }


def _print_diff(found: Diff) -> None:
    work, policy = found.of("work"), found.of("policy")
    say(f"The work differs in {_steps(work)}, the policy in {_steps(policy)}.")
    for line in found.file:
        say(f"  {line}")
    for step in found.steps:
        if step.kind != "changed":
            say(f"{step.id}: {step.kind}")
            continue
        say(f"{step.id}:")
        for part in ("work", "policy", "notes"):
            for change in step.changes:
                if change.part == part:
                    say(f"  {part + ':':<8}{change.text}")
        for line in step.consequences:
            say(f"  {'so:':<8}{line}")


def _steps(ids: Sequence[str]) -> str:
    return counted(len(ids), "step") if ids else "no step"


# -- schema ------------------------------------------------------------------------------------------------------------


def print_schema(
    *,
    connections: Annotated[
        bool, typer.Option("--connections", help="That of connections.yaml instead, with every family of connections.")
    ] = False,
) -> None:
    """
    Print the JSON Schema of flow files for editors. It has every component that is installed.
    """
    from outlast.spec.schema import connections_schema, json_schema

    unloaded: dict[str, str] = {}
    print_json(connections_schema(unloaded) if connections else json_schema(unloaded))
    for name, why in unloaded.items():
        hint(f"{name} is in the schema by its name only: {why}")


# -- files -------------------------------------------------------------------------------------------------------------


def read_manifest(file: str, given: Given) -> Manifest:
    """The manifest that a file is, or that a pipeline file comes to. What is given is for pipeline files only."""
    if not is_manifest(file):
        return _manifest(file, given)
    from outlast.spec.manifest import Manifest

    try:
        return Manifest.from_json(_read(file))
    except ConfigurationError as wrong:
        refuse(*(f"{file}: {problem}" for problem in wrong.problems))


def is_manifest(file: str) -> bool:
    """Whether a file is a manifest rather than a pipeline file, which may be JSON too."""
    text = _read(file)
    return text.lstrip()[:1] == b"{" and b'"outlast_manifest"' in text


def _read(file: str) -> bytes:
    from outlast.spec.yaml import load

    return load(file, "a file", _MOST_MANIFEST)


def _manifest(file: str, given: Given, *, strict: bool = False, warn: bool = False) -> Manifest:
    """The manifest of a pipeline file; mistakes are told, and end the command. With `warn`, warnings are told too."""
    compiled = compiled_file(file, given, warn=warn)
    warned = warn and compiled.counts.get("warning", 0) > 0
    if compiled.manifest is None or (strict and warned):
        raise typer.Exit(Code.INVALID)
    return compiled.manifest


def compiled_file(file: str, given: Given, *, warn: bool | None = None) -> Compiled:
    """
    What a pipeline file comes to, with its mistakes told, and with `warn` its warnings; with None one line says how many
    there are, as for commands that run what was checked before. A file that cannot be read ends the command.
    """
    compiled, unread = _looked_at(file, given, complete=True)
    if compiled is None:
        refuse(unread)
    for one in compiled.mistakes:
        if one.severity == "error" or (warn and one.severity == "warning"):
            hint(str(one))
    if warn is None and not compiled.errors and (number := compiled.counts.get("warning", 0)):
        hint(f"{file}: {counted(number, 'warning')}. Inspect: {shlex.join(['outlast', 'validate', file])}")
    if warn is not False and (unchecked := _unchecked(file, compiled, given)):
        hint(unchecked)
    return compiled


def carried_values(file: str, was: Manifest, given: Given) -> Given:
    """
    What is given for a file whose run goes on: the profile and the values that the run was begun with, unless another is
    given now. A parameter that the file has no more, or that takes other values now, is the file's own.
    """
    from outlast.spec.params import Unfit, value_for

    compiled, _ = _looked_at(file, given, complete=False)
    if compiled is None or compiled.model is None:
        return given
    model = compiled.model
    profiles = model.node.get("profiles")
    has_profile = profiles is not None and profiles.kind == "map" and profiles.get(was.profile or "") is not None
    values: dict[str, Any] = {}
    for name, value in was.params.items():
        declared = model.params.get(name)
        if declared is None or declared.sensitive or name in given.params:
            continue
        try:
            values[name] = value_for(declared, value)
        except Unfit:
            hint(f"{file} does not take the value of {name} any more that the run was begun with: its own is taken.")
    return replace(given, params={**values, **given.params}, profile=was.profile if has_profile else None)


def _looked_at(file: str, given: Given, *, complete: bool, every_profile: bool = False) -> tuple[Compiled | None, str]:
    """What compiling a file comes to; or why it cannot be read."""
    from outlast.flow import compile_path

    try:
        compiled = compile_path(
            file,
            params=given.params,
            profile=given.profile,
            connections=given.connections,
            root=given.root,
            complete=complete,
            every_profile=every_profile,
            manifest=complete,  # nobody takes one of a file whose parameters may be open
            from_shell=True,
        )
    except ConfigurationError as unread:
        return None, unread.problems[0]
    return compiled, ""
