"""Random filters and rows for them, for property tests."""

from typing import Any

from hypothesis import strategies as st

from anchorfold.filters.values import BOOLEAN, DATE, FLOAT, INTEGER, TEXT

TYPES = {"name": TEXT, "title": TEXT, "year": INTEGER, "pages": INTEGER, "price": FLOAT, "signed": BOOLEAN, "day": DATE}
TEXTS = ["", "a", "B", "ab", "AB", "a%b", "a_b", "Ärger", "ärger", "it's", "x" * 20, "sales", "1", "2024-01-01", "true"]
DAYS = ["2023-12-31", "2024-01-01", "2024-02-29"]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    TEXT: st.sampled_from(TEXTS), INTEGER: st.integers(-3, 3) | st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63)]),
    FLOAT: st.sampled_from([-1.5, 0.0, 1.0, 2.5, 1e300]), BOOLEAN: st.booleans(), DATE: st.sampled_from(DAYS),
}  # fmt: skip
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | VALUES[kind] for name, kind in TYPES.items()}), min_size=1, max_size=8
)


def literal(value: Any) -> str:
    """A value as SQL."""
    if isinstance(value, bool):
        return str(value).lower()
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


@st.composite
def leaves(draw: st.DrawFn) -> str:
    """A filter without and, or, not."""
    name = draw(st.sampled_from(list(TYPES)))
    kind = TYPES[name]
    value = VALUES[kind].map(literal) if kind != FLOAT else (VALUES[FLOAT] | VALUES[INTEGER]).map(literal)
    signs = ["=", "!=", "<>"] if kind == BOOLEAN else ["=", "!=", "<", "<=", ">", ">="]
    sign, negation = draw(st.sampled_from(signs)), draw(st.sampled_from(["", "not "]))
    alike = [n for n, k in TYPES.items() if k == kind or {k, kind} == {INTEGER, FLOAT}]
    options = [
        f"{name} {sign} {draw(value)}",
        f"{draw(value)} {sign} {name}",
        f"{name} {sign} {draw(st.sampled_from(alike))}",
        f"{name} is {negation}null",
        f"{name} {negation}in ({', '.join(draw(st.lists(value, min_size=1, max_size=3)))})",
    ]
    if kind != BOOLEAN:
        options.append(f"{name} {negation}between {draw(value)} and ({draw(value)})")
    else:
        options += [name, f"{name} is {negation}true", f"{name} is {negation}false"]
    if kind == TEXT:
        pattern = literal(draw(st.text("abÄä%_B", max_size=6)))
        options.append(f"{name} {negation}{draw(st.sampled_from(['like', 'ilike']))} {pattern}")
    return draw(st.sampled_from(options))


EXPRESSIONS = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map("".join),
        inner.map(lambda text: f"not ({text})"),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=6,
)
