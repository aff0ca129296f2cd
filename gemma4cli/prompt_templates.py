"""Prompts that hold a row's columns: `What does this {{ brand }} cost?`, in Jinja.

A prompt is a template where it holds `{{` or `{%`, and verbatim else. Columns go by their names, or `row["odd name"]`;
one that is missing or null where it is written out fails the row, for the model would be asked about None. Templates
may come from strangers, so they run in Jinja's sandbox, can neither read files nor draw at random, and may do so much
and no more.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

from gemma4cli.errors import ParseError, UsageError
from gemma4cli.escaping import printable

if TYPE_CHECKING:
    import jinja2

    from gemma4cli.inputs import Inputs
    from gemma4cli.records import Item

ROW = "row"
LONGEST = 1 << 20  # characters of a prompt
STEPS = 100_000  # turns of all loops, and calls, in filling in one prompt
_LARGEST_NUMBER = 10_000  # that a function or a filter is given: a width, a count
_SHOWN = 200
_FORMATTED = re.compile(r"[%{:.*]\D?\d{5,}|%[-+ #0]*\*")  # a width of five digits, or one from elsewhere
_NULL = "a value is null; write {{ value or 'what else' }} where that may be"
_TEXT_FILTERS = frozenset({
    "capitalize", "e", "escape", "forceescape", "format", "indent", "lower", "replace", "safe", "string", "striptags",
    "title", "trim", "truncate", "upper", "urlencode", "urlize", "wordcount", "wordwrap",
})  # fmt: skip
_OPTIONAL_FILTERS, _OPTIONAL_TESTS = ("default", "d"), ("defined", "undefined")


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt to be filled in.

    columns: those that it names; None are all.  needed: of these, those that it does not ask after first.
    """

    text: str
    columns: frozenset[str] | None
    needed: frozenset[str]
    compiled: jinja2.Template

    def filled(self, values: Mapping[str, Any]) -> str:
        """The prompt of a row.

        Raises:
            ParseError: `prompt_template`, in Jinja's words.
        """
        environment: Any = self.compiled.environment
        environment.left = STEPS
        parts, length = [], 0
        try:
            for part in self.compiled.generate({**values, ROW: values}):
                parts.append(part)
                length += len(part)
                if length > LONGEST:
                    raise OverflowError(f"it comes to more than {LONGEST:,} characters")
        except Exception as error:  # whatever the row's values make of it
            why = printable(" ".join(str(error).split())) or type(error).__name__
            raise ParseError("prompt_template", f"the prompt cannot be filled in: {why[:_SHOWN]}") from None
        return "".join(parts).strip()


def is_template(text: str | None) -> bool:
    return text is not None and ("{{" in text or "{%" in text)


def filled(text: str, item: Item) -> str:
    """A prompt for a row, filled in where it is a template. Raises ParseError."""
    return template(text).filled(item.told) if is_template(text) else text


def checked(flag: str, text: str | None) -> None:
    """Raises UsageError where a prompt is a template that cannot be read."""
    if text is not None and is_template(text):
        try:
            template(text)
        except ValueError as error:
            hint = 'Braces that are to stay go into {% raw %}...{% endraw %}, or {{ "{{" }}.'
            raise UsageError(f"{flag} is no template: {printable(str(error))}", hint) from None


@functools.lru_cache(maxsize=256)
def template(text: str) -> Template:
    """A prompt made ready. Raises ValueError where it cannot be read, with the line."""
    import jinja2
    from jinja2 import meta, nodes

    environment = _environment()
    try:
        tree = environment.parse(text)
        outside = next(tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)), None)
        if outside is not None:
            raise jinja2.TemplateSyntaxError("it cannot take in other files", outside.lineno)
        names = meta.find_undeclared_variables(tree) - environment.globals.keys() - {ROW}
        items, whole = _items_of_row(tree)
        optional = _asked_after(tree)
        compiled = environment.from_string(_bounded(tree))
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        raise ValueError(f"{error.message or error}{'' if line is None else f' (line {line})'}") from None
    except (RecursionError, SyntaxError):  # of the Python that it becomes
        raise ValueError("it is nested too deeply") from None
    columns = frozenset(names | items)
    return Template(text, None if whole else columns, columns - optional, compiled)


def told(inputs: Inputs, prompts: Iterable[str | None]) -> Inputs:
    """The rows with what these prompts are to be filled in with, which then belongs to what a row is known by.

    Raises:
        UsageError: a prompt names a column that there is not.
    """
    templates = [template(text) for text in prompts if text is not None and is_template(text)]
    if not templates:
        return inputs
    there = [*inputs.columns.names, *(() if "id" in inputs.columns.names else ("id",))]
    for each in templates:
        missing = sorted(each.needed - set(there))
        if missing:
            raise _missing(missing[0], inputs.columns.names)
    names = None if any(each.columns is None for each in templates) else _union(templates)

    def change(item: Item) -> Item:
        values = {"id": item.id, **item.extra}
        return replace(item, told=values if names is None else {n: values[n] for n in names if n in values})

    return inputs.changed(change)


def _union(templates: Iterable[Template]) -> list[str]:
    return sorted(set(chain.from_iterable(each.columns or () for each in templates)))


def _missing(name: str, columns: list[str]) -> UsageError:
    import difflib

    message = f"the prompt names {{{{ {printable(name)} }}}}, and the rows have no such column"
    if not columns:
        return UsageError(message, "Files and folders have none but id; give a manifest that has it.")
    near = difflib.get_close_matches(name, columns, 1, 0.5)
    listed = ", ".join(printable(column) for column in columns[:40])
    return UsageError(message, f"{f'Did you mean {near[0]}? ' if near else ''}The columns are: {listed}.")


def _items_of_row(tree: Any) -> tuple[set[str], bool]:
    """The columns that are named as items or attributes of `row`, and whether it is used as a whole as well."""
    from jinja2 import nodes

    found, named = set(), 0
    for node in tree.find_all((nodes.Getitem, nodes.Getattr)):
        name = _column(node)
        if name is not None:
            named += 1
            found.add(name)
    whole = sum(node.name == ROW and node.ctx == "load" for node in tree.find_all(nodes.Name))
    return found, whole > named


def _column(node: Any) -> str | None:
    """The column that a node names: `brand`, `row.brand`, `row["brand"]`."""
    from jinja2 import nodes

    match node:
        case nodes.Getitem(node=nodes.Name(name="row"), arg=nodes.Const(value=str() as name)):
            return name
        case nodes.Getattr(node=nodes.Name(name="row"), attr=str() as name) if not hasattr(dict, name):
            return name
    return None


def _asked_after(tree: Any) -> set[str]:
    """The columns for which there is a default, or of which is asked whether they are there."""
    from jinja2 import nodes

    found = set()
    for node in tree.find_all((nodes.Filter, nodes.Test)):
        names = _OPTIONAL_FILTERS if isinstance(node, nodes.Filter) else _OPTIONAL_TESTS
        if node.name in names and node.node is not None:
            name = node.node.name if isinstance(node.node, nodes.Name) else _column(node.node)
            if name is not None:
                found.add(name)
    return found


def _bounded(tree: Any) -> Any:
    """The template whose loops count their turns, and whose joined texts have a length that is looked at."""
    from jinja2 import nodes

    def through(node: Any, name: str) -> Any:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    for node in list(tree.find_all(nodes.For)):
        node.iter = through(node.iter, "counted")
    for parent in list(tree.find_all(nodes.Node)):
        for field, value in list(parent.iter_fields()):
            if isinstance(value, nodes.Concat):
                setattr(parent, field, through(nodes.List(value.nodes, lineno=value.lineno), "run_together"))
            elif isinstance(value, list):
                value[:] = [
                    through(nodes.List(each.nodes, lineno=each.lineno), "run_together")
                    if isinstance(each, nodes.Concat)
                    else each
                    for each in value
                ]
    tree.set_environment(tree.environment)
    return tree


@functools.cache
def _environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        """Jinja's sandbox, in which what could go on for ever or grow without end is counted."""

        intercepted_binops = frozenset({"+", "*", "**", "%"})
        left = STEPS

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _refuse_giant(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  as Jinja has it
            __self.step()
            _refuse_large(args, kwargs)
            method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
            _refuse_growth(getattr(method, "__name__", ""), getattr(method, "__self__", None), args)
            return _measured(super().call(__context, __obj, *args, **kwargs))

        def step(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise OverflowError(f"its loops and calls come to more than {STEPS:,} turns")

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_written, auto_reload=False
    )
    for name in ("lipsum",):
        del environment.globals[name]
    for name in ("random", "center"):
        del environment.filters[name]
    environment.filters["tojson"] = _json  # Jinja's own is for web pages: it's would be it\\u0027s
    environment.filters = {name: _guarded(name, filter) for name, filter in environment.filters.items()}

    def counted(values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            environment.step()
            yield value

    def run_together(values: list[Any]) -> str:
        texts = [str(_written(value)) for value in values]
        if sum(map(len, texts)) > LONGEST:
            raise OverflowError(f"a text of more than {LONGEST:,} characters")
        return "".join(texts)

    environment.filters |= {"counted": counted, "run_together": run_together}
    return environment


def _json(value: Any, indent: int | None = None) -> str:
    """JSON as people write it; times and decimal numbers, which JSON has not, are texts."""

    def text(other: Any) -> str:
        if isinstance(other, date | time):
            return other.isoformat()
        if isinstance(other, Decimal | timedelta):
            return str(other)
        raise TypeError(f"{type(other).__name__} has no form in JSON")

    return json.dumps(value, ensure_ascii=False, indent=indent, default=text)


def _guarded(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(filter)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        args = _refuse_null(name, args)
        _refuse_large(args[1:], kwargs)
        texts = [each for each in args if isinstance(each, str)]
        if texts:
            _refuse_growth(name, texts[0], texts[1:])
        return _measured(filter(*args, **kwargs))

    return guarded


def _written(value: Any) -> Any:
    """What is written out for a value."""
    from jinja2 import Undefined

    if value is None:
        raise ValueError(_NULL)
    if isinstance(value, Iterator):
        raise ValueError("a list that is still to be made is written out; add | list, or | join(', ')")
    if callable(value) and not isinstance(value, Undefined):  # which says itself what is missing
        name = str(getattr(value, "__name__", "x")).removeprefix("safe_")  # as the sandbox calls its range
        raise ValueError(f"{name} is a function here; write row['{name}'] for a column of that name")
    return value


def _refuse_null(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a filter that makes text, of which a null would become the word None."""
    if name == "join":
        args = tuple(list(each) if isinstance(each, Iterator) else each for each in args)
        values = [part for each in args if isinstance(each, list | tuple) for part in each]
    else:
        values = list(args) if name in _TEXT_FILTERS else []
    if any(value is None for value in values):
        raise ValueError(_NULL)
    return args


def _refuse_large(args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
            raise OverflowError(f"{value} is too large a number for a function; they take up to {_LARGEST_NUMBER:,}")


def _refuse_growth(name: str, text: Any, args: Any) -> None:
    """Of texts: what they may grow to by replacement, and by widths that stand in a format."""
    if not isinstance(text, str):
        return
    if name == "replace" and len(args) >= 2 and all(isinstance(each, str) for each in args[:2]):
        if len(text) + text.count(args[0]) * len(args[1]) > LONGEST:
            raise OverflowError(f"a text of more than {LONGEST:,} characters")
    elif name in ("format", "format_map") and _FORMATTED.search(text):
        raise OverflowError("a width of more than four digits")


def _refuse_giant(operator: str, left: Any, right: Any) -> None:
    size = 0
    match operator:
        case "*":
            for sized, times in ((left, right), (right, left)):
                if isinstance(sized, str | bytes | list | tuple) and isinstance(times, int):
                    size = len(sized) * max(0, times)
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 4096:
                size = LONGEST + 1
        case "**" if isinstance(right, int | float) and (abs(right) > 64 or abs(left) > 2**64):
            size = LONGEST + 1
        case "+" if isinstance(left, str | bytes | list | tuple) and isinstance(right, str | bytes | list | tuple):
            size = len(left) + len(right)
        case "%" if isinstance(left, str):
            _refuse_growth("format", left, ())
    if size > LONGEST:
        raise OverflowError(f"{operator} comes to more than {LONGEST:,}")


def _measured(value: Any) -> Any:
    if isinstance(value, str) and len(value) > LONGEST:
        raise OverflowError(f"a text of more than {LONGEST:,} characters")
    return value
