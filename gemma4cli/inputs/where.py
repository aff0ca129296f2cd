"""--where: a small language of conditions on columns -> an Arrow expression.

    width > 512 and split == "train"
    label in ["cat", "dog"] or label is None
    "red" in caption and not caption.startswith("A")
    size.height >= 2 * size.width
    column("name with spaces") != 3

It is read as Python's syntax and never run: names are columns, attributes are fields of structs, and what is not
listed here is refused. A comparison with null is neither true nor false, and takes no row.
"""

from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gemma4cli.errors import UsageError
from gemma4cli.escaping import first_line, printable

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_SUMS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_METHODS: Mapping[str, Callable[[Any, str], Any]] = {
    "startswith": lambda text, part: pc.starts_with(text, part),
    "endswith": lambda text, part: pc.ends_with(text, part),
    "matches": lambda text, part: pc.match_substring_regex(text, part),
}
_HINT = (
    "It takes columns, numbers, texts, comparisons, and, or, not, in, is None, + - * /, len(x), x.startswith(t), "
    "x.endswith(t) and x.matches(regex)."
)
_PLACE = "\0place"


class Where:
    """A condition on the rows of a manifest.

    columns: the columns that it looks at.  expression: as Arrow has it.
    """

    def __init__(self, text: str, schema: pa.Schema, as_json: frozenset[str] = frozenset()) -> None:
        """Raises UsageError where the text is no condition on these columns."""
        self._text, self._schema, self._as_json = text, schema, as_json
        self.columns: frozenset[str] = frozenset()
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            what = getattr(error, "msg", None) or str(error)
            raise self._refused(f"is not a condition ({what})") from None
        try:
            self.expression = self._condition(tree)
            looked = {name: schema.field(name).type for name in sorted(self.columns)}
            pa.table({name: pa.array([], kind) for name, kind in looked.items()} | {_PLACE: pa.array([], pa.int64())}
                     ).filter(self.expression)  # fmt: skip
        except (pa.ArrowException, TypeError, ValueError, RecursionError, OverflowError) as error:
            types = ", ".join(f"{printable(name)} is {schema.field(name).type}" for name in sorted(self.columns))
            raise self._refused(f"does not fit the columns ({types}): {first_line(error, 200)}") from None

    def keeps(self, records: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Of each record, whether the condition is true of it. Raises ArrowException where a value has another type."""
        names = sorted(self.columns)
        arrays = [pa.array([record.get(name) for record in records], self._schema.field(name).type) for name in names]
        return self.of(pa.Table.from_arrays(arrays, names), len(records))

    def of(self, table: pa.Table, rows: int) -> list[bool]:
        """The same of the rows of a table that has these columns.

        Raises:
            UsageError: it cannot be told of some, such as where it divides by nothing.
        """
        places = pa.array(range(rows), pa.int64())
        table = table.append_column(_PLACE, places) if self.columns else pa.table({_PLACE: places})
        kept = [False] * rows
        try:
            taken = table.filter(self.expression)[_PLACE].to_pylist()
        except pa.ArrowException as error:
            raise self._refused(f"cannot be told of some rows: {first_line(error, 200)}") from error
        for place in taken:
            kept[place] = True
        return kept

    def _condition(self, node: ast.expr) -> Any:
        """An expression that is true or false."""
        match node:
            case ast.BoolOp(op=op, values=values):
                return reduce(operator.and_ if isinstance(op, ast.And) else operator.or_, map(self._condition, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self._condition(operand)
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [left, *others]
                return reduce(operator.and_, map(self._compared, sides, ops, others))
            case ast.Call(func=ast.Attribute(value=text, attr=name), args=[ast.Constant(value=str() as part)]) if (
                name in _METHODS and not node.keywords
            ):
                return _METHODS[name](self._value(text), part)
            case ast.Constant(value=bool() as value):
                return pc.scalar(value)
        return self._value(node)

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
        if isinstance(op, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._refused("compares with `is` what is not None")
            null = self._value(left).is_null()
            return null if isinstance(op, ast.Is) else ~null
        if isinstance(op, ast.In | ast.NotIn):
            found = self._inside(left, right)
            return found if isinstance(op, ast.In) else ~found
        if any(isinstance(side, ast.Constant) and side.value is None for side in (left, right)):
            raise self._refused("compares with None, which no value is equal to: write `is None` or `is not None`")
        return _COMPARISONS[type(op)](self._value(left), self._value(right))

    def _inside(self, left: ast.expr, right: ast.expr) -> Any:
        if isinstance(right, ast.List | ast.Tuple | ast.Set):
            values = [self._constant(value) for value in right.elts]
            return self._value(left).isin(values)
        if isinstance(left, ast.Constant) and isinstance(left.value, str):
            return pc.match_substring(self._value(right), left.value)
        raise self._refused('has an `in` that is neither `column in [values]` nor `"text" in column`')

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=str() | int() | float() as value):
                return pc.scalar(value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return pc.scalar(-value)
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _SUMS:
                return _SUMS[type(op)](self._value(left), self._value(right))
            case ast.Call(func=ast.Name(id="len"), args=[text]) if not node.keywords:
                return self._length(text)
            case ast.Name() | ast.Attribute() | ast.Call():
                return pc.field(*self._steps(node))
        raise self._refused(f"holds what cannot be looked up: {ast.unparse(node)}")

    def _length(self, node: ast.expr) -> Any:
        steps = self._steps(node)
        kind = self._schema.field(steps[0]).type
        for step in steps[1:]:
            kind = kind.field(step).type
        count = pc.list_value_length if pa.types.is_list(kind) or pa.types.is_large_list(kind) else pc.utf8_length
        return count(pc.field(*steps))

    def _steps(self, node: ast.expr) -> tuple[str, ...]:
        """A column, and the fields to go down in it."""
        match node:
            case ast.Name(id=name):
                return (self._column(name),)
            case ast.Call(func=ast.Name(id="column"), args=[ast.Constant(value=str() as name)]) if not node.keywords:
                return (self._column(name),)
            case ast.Attribute(value=inner, attr=name):
                steps = self._steps(inner)
                kind = self._schema.field(steps[0]).type
                for step in (*steps[1:], name):
                    if not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
                        raise self._refused(f"asks for {printable('.'.join((*steps, name)))}, which is not there")
                    kind = kind.field(step).type
                return (*steps, name)
        raise self._refused(f"holds what cannot be looked up: {ast.unparse(node)}")

    def _column(self, name: str) -> str:
        if name not in self._schema.names:
            near = difflib.get_close_matches(name, self._schema.names, n=1, cutoff=0.5)
            did = f"did you mean {printable(near[0])}? " if near else ""
            names = ", ".join(map(printable, self._schema.names[:40]))
            raise UsageError(f"--where: there is no column {printable(name)}", f"{did}the columns are: {names}")
        if name in self._as_json:
            raise self._refused(f"looks at {printable(name)}, which holds values of several types")
        self.columns |= {name}
        return name

    def _constant(self, node: ast.expr) -> Any:
        try:
            value = ast.literal_eval(node)
        except ValueError:
            value = None
        if not isinstance(value, str | int | float):
            raise self._refused(f"has a list with more than texts and numbers: {ast.unparse(node)}")
        return value

    def _refused(self, what: str) -> UsageError:
        return UsageError(f"--where {printable(repr(self._text))} {what}", _HINT)
