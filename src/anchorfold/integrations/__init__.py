"""Integrations with other libraries, one file each; each requires the library it is named after."""
