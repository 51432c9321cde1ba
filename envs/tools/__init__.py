"""Episodes in which the model calls tools.

`tool_env` implements the contract of `envs.base`, and `calls` parses the model's text. `toolset` is
the interface of tools, which `functions`, `sandboxed` and `mcp_server` implement. `named_tools`
reads tools from a configuration. Nothing is imported here, because each worker process needs only
one module.
"""
