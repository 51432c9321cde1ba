"""Names that exist because a document of siiRL or verl spells them so; README.md lists all of them."""
