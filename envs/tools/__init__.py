"""Episodes in which the model calls tools.

`environment` puts them behind the contract of `envs.base`, `calls` reads what the model writes,
`toolset` says what a tool is, `functions`, `programs` and `mcp_server` bring them, `named_tools`
reads their names. Nothing is imported here: worker processes need one module each.
"""
