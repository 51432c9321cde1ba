"""Episodes in which the model calls tools.

`tool_env` implements the contract of `envs.base`, `calls` parses the model's text, `toolset` is the
interface of tools, `functions`, `sandboxed` and `mcp_server` implement it, and `named_tools` reads
tools from a configuration. Nothing is imported here: worker processes need one module each.
"""
