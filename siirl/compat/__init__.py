"""Names that documents of siiRL or verl use; README.md lists them."""
