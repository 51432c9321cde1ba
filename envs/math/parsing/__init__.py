"""Parts of a text: characters, markup, words, numbers with units, sentences, notation.

`vocabulary` lists the words that leave a number alone and those that change it; `languages` and the
`foreign_` modules do so for other languages.
"""
