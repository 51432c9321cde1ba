r"""Finds the answer that a text states.

`answers` looks for marks first: `marks` and `line_marks` (`####`, `Answer:`), `boxes` (`\boxed`).
Without a mark `conclusions` reads the end of the text: `lone_values`, `closing_sentences`,
`named_answers`, and the remarks that may follow (`last_lines`).
"""
