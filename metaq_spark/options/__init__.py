"""The options of ``format("metaq")``: their table, how each is read, and the objects made of them."""
