"""The options of ``format("metaq")``: their table, their parsers, and the objects that hold them."""
