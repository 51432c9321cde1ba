"""The page of batch columns, from the table that pads and checks them."""

from docs.generate.markdown import escaped, table
from siirl.dag_worker import stages
from siirl.data_coordinator.protocol.batch_columns import COLUMNS, Layout
from siirl.execution.dag.columns import declared_columns
from siirl.user_interface.filter_interface import dapo, embodied

INTRODUCTION = """\
# Batch columns

A batch is a TensorDict with one row for each trajectory. Axes: B trajectory, T response token,
P prompt token, C chunk of actions (one observation each), L instruction word, N camera, H height,
W width, J proprioception value, D embedding. Rows are padded to the longest row of their batch;
**layout** says which axis is padded. `register_column` of
`siirl.data_coordinator.protocol.batch_columns` declares a column of your own that runs along
tokens; other columns pass through unchanged.

"""


def page() -> str:
    """Markdown of the page."""
    functions = [
        function
        for module in (stages, dapo, embodied)
        for function in vars(module).values()
        if callable(function) and getattr(function, "__module__", "") == module.__name__
    ]
    rows = []
    for name, column in COLUMNS.items():
        declared = [(function.__name__, declared_columns(function)) for function in functions]
        adding = [f"`{of}`" for of, its in declared if name in (its.provides or ())]
        reading = [
            f"`{of}`"
            for of, its in declared
            if name in (its.requires or ()) or name in its.optional
        ]
        dtype = "text" if column.dtype is None else column.dtype.__name__
        cells = (f"`{name}`", dtype, f"[{column.axes}]", column.layout.value)
        rows.append((*cells, escaped(column.meaning), ", ".join(adding), ", ".join(reading)))
    head = ("column", "dtype", "axes", "layout", "meaning", "added by", "read by")
    layouts = [(f"`{layout.value}`", escaped(meaning)) for layout, meaning in LAYOUTS.items()]
    return INTRODUCTION + table(head, rows) + "\n## Layouts\n\n" + table(("layout", ""), layouts)


LAYOUTS = {
    Layout.FIXED: "one value or one array of fixed shape per row",
    Layout.TOKEN: "response tokens, padded on the right",
    Layout.CHUNK: "chunks of actions, padded on the right",
    Layout.PROMPT: "prompt tokens, padded on the left",
    Layout.SEQUENCE: "prompt then response, padded on both sides",
    Layout.WORDS: "instruction words, padded on the right",
    Layout.TEXT: "one string per row",
}
