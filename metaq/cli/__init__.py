"""The command ``metaq``: sends, shows and counts messages from a shell. Documented in docs/cli.md."""
