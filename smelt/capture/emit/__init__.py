"""The compiled frame as Python source: it calls the graph, rebuilds the result and replays the effects."""
