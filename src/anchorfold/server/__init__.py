"""Search page, JSON API and MCP server; all are read-only."""
