"""The dialect points of the graphs: one file per function, every spelling of it beside the others."""
